"""Analyses from the papers: planes of gradients, the line between weights, bounds, characteristics."""

from leakscope.analysis.bounds import (
    Bounds as Bounds, Constants as Constants, bound_gd as bound_gd, bound_sgd as bound_sgd, bounds_of as bounds_of,
    confidence as confidence, local_constants as local_constants,
)  # fmt: skip
from leakscope.analysis.characteristic import (
    Characteristic as Characteristic, Point as Point, Region as Region, Rule as Rule, bias_ratio as bias_ratio,
    measured as measured, region as region,
)  # fmt: skip
from leakscope.analysis.convergence import (
    Shares as Shares, change_ratios as change_ratios, histogram as histogram, image_curve as image_curve,
    image_curves as image_curves, shares as shares,
)  # fmt: skip
from leakscope.analysis.descent import bulge as bulge, linear_match as linear_match
from leakscope.analysis.flows import best_place as best_place, cosines_between as cosines_between, descend as descend
from leakscope.analysis.inferring import Guess as Guess, Inferred as Inferred, Sure as Sure, infer as infer
from leakscope.analysis.line import (
    Lines as Lines, Spread as Spread, cosines_on_line as cosines_on_line, describe as describe,
    sample_lines as sample_lines,
)  # fmt: skip
from leakscope.analysis.linear_system import (
    SystemReport as SystemReport, inspect_layer as inspect_layer, inspect_matrix as inspect_matrix,
)  # fmt: skip
from leakscope.analysis.mixing import (
    alignment as alignment, dense_gradient as dense_gradient, output_errors as output_errors, turned as turned,
)  # fmt: skip
from leakscope.analysis.plane import (
    full_gradients as full_gradients, local_path as local_path, off_plane as off_plane,
    shares_in_plane as shares_in_plane,
)  # fmt: skip
