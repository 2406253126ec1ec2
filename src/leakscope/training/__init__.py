"""Training a federation from a file, in a run that survives being killed."""

from leakscope.training.file import Training as Training, read_training as read_training, training_of as training_of
from leakscope.training.result import Point as Point, Result as Result
from leakscope.training.run import check_training as check_training, run_training as run_training
