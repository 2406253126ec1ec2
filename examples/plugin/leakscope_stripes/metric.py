"""A metric: how well edges came back."""

from torch import Tensor


def edge_error(truth: Tensor, guess: Tensor) -> Tensor:
    """Return the mean absolute error of the differences between neighbouring pixels, for each image (N x C x H x W -> N)."""
    across = (truth.diff(dim=-1) - guess.diff(dim=-1)).abs().flatten(1).mean(1)
    down = (truth.diff(dim=-2) - guess.diff(dim=-2)).abs().flatten(1).mean(1)
    return (across + down) / 2
