"""Losses, gradients and local training from weights and a batch; shared by clients and attacks."""

from leakscope.learning.gradients import loss_and_gradient as loss_and_gradient
from leakscope.learning.local import draw_order as draw_order, train as train
from leakscope.learning.losses import (
    LOSSES as LOSSES, Loss as Loss, UserLoss as UserLoss, cross_entropy as cross_entropy, mse as mse, one_hot as one_hot,
    softmax_cross_entropy as softmax_cross_entropy,
)  # fmt: skip
from leakscope.learning.transforms import SIGNED as SIGNED, transform as transform, transform_once as transform_once
