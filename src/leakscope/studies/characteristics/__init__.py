"""Privacy-preserving characteristics (PPC) of runs, for any defence that a sweep varies and any attack on it.

A run is a sweep along one strength of a defence (`defences.0.sigma`, ...). Cells that differ only in that strength form one
line. Accuracies come from training the same network on the same data under the same defence, or from a file.
"""

from leakscope.studies.characteristics.curves import Curves as Curves, measure_curves as measure_curves
from leakscope.studies.characteristics.lines import AccuracyOf as AccuracyOf, Line as Line, folder_of as folder_of
from leakscope.studies.characteristics.lines import accuracies_from as accuracies_from, guessing as guessing
from leakscope.studies.characteristics.lines import lines_of as lines_of, name_lines as name_lines
from leakscope.studies.characteristics.lines import shares_alike as shares_alike, training_under as training_under
