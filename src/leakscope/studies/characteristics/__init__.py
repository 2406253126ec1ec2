"""Characteristics (PPC) of one's own runs: any defence that a sweep varies, against any attack of it.

A run is a sweep along one strength of a defence (`defences.0.sigma`, `client.on_model.alpha2`, ...). Cells that differ in nothing but
that strength are one line (`lines`). Accuracies come from a training of the same network on the same data under the same defence,
or from a file (`accuracies`); distances from what the run stored (`curves`).
"""

from leakscope.studies.characteristics.accuracies import (
    AccuracyOf,
    accuracies_from,
    folder_of,
    guessing,
    shares_alike,
    training_under,
)
from leakscope.studies.characteristics.curves import Curves, measure_curves
from leakscope.studies.characteristics.lines import Line, lines_of, name_lines

__all__ = [
    "AccuracyOf",
    "Curves",
    "Line",
    "accuracies_from",
    "folder_of",
    "guessing",
    "lines_of",
    "measure_curves",
    "name_lines",
    "shares_alike",
    "training_under",
]
