"""Training a federation from a file: what it may say, and the run that survives being killed."""

from leakscope.training.file import Training, read_training, training_of
from leakscope.training.result import Point, Result
from leakscope.training.run import check_training, run_training

__all__ = [
    "Point",
    "Result",
    "Training",
    "check_training",
    "read_training",
    "run_training",
    "training_of",
]
