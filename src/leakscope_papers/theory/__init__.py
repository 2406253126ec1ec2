"""The papers' theorems and what they speak of: planes of gradients, the line between weights, bounds, mixing batches."""

from leakscope_papers.theory.bounds import (
    Bounds as Bounds, Constants as Constants, bound_gd as bound_gd, bound_sgd as bound_sgd, bounds_of as bounds_of,
    confidence as confidence, local_constants as local_constants,
)  # fmt: skip
from leakscope_papers.theory.convergence import (
    Shares as Shares, change_ratios as change_ratios, histogram as histogram, shares as shares,
)  # fmt: skip
from leakscope_papers.theory.descent import bulge as bulge, linear_match as linear_match
from leakscope_papers.theory.flows import (
    best_place as best_place,
    cosines_between as cosines_between,
    descend as descend,
)
from leakscope_papers.theory.line import (
    Lines as Lines, Spread as Spread, cosines_on_line as cosines_on_line, describe as describe,
    sample_lines as sample_lines,
)  # fmt: skip
from leakscope_papers.theory.linear_system import inspect_matrix as inspect_matrix
from leakscope_papers.theory.mixing import (
    alignment as alignment, dense_gradient as dense_gradient, output_errors as output_errors, turned as turned,
)  # fmt: skip
from leakscope_papers.theory.plane import (
    full_gradients as full_gradients, local_path as local_path, off_plane as off_plane,
    shares_in_plane as shares_in_plane,
)  # fmt: skip
