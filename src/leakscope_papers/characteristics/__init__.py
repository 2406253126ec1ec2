"""Privacy-preserving characteristics (PPC): accuracy and privacy of a defence on one curve, its mean (CAP), and a page of them.

`lines_of` reads a stored run: a sweep along one strength of a defence (`defences.0.sigma`, ...). Cells that differ only in that
strength form one line. Accuracies come from training the same network on the same data under the same defence, or from a file.
"""

from leakscope_papers.characteristics.characteristic import (
    Characteristic as Characteristic, Example as Example, Point as Point, Region as Region, Rule as Rule,
    bias_ratio as bias_ratio, measured as measured, region as region,
)  # fmt: skip
from leakscope_papers.characteristics.curves import Curves as Curves, measure_curves as measure_curves
from leakscope_papers.characteristics.lines import (
    AccuracyOf as AccuracyOf, Line as Line, accuracies_from as accuracies_from, folder_of as folder_of,
    guessing as guessing, lines_of as lines_of, name_lines as name_lines, shares_alike as shares_alike,
    training_under as training_under,
)  # fmt: skip
from leakscope_papers.characteristics.page import (
    CharacteristicPage as CharacteristicPage, render_characteristics as render_characteristics,
    write_characteristics as write_characteristics,
)  # fmt: skip
