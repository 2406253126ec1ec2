"""Films of an attack: the frames of one picture, and the timeline that one slider shares between many films."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from leakscope.core.record import COURSE

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

POSITIONS = 48
TRACE_POINTS = 80


def film(tensors: Mapping[str, Tensor], sample: int, last: int) -> tuple[Tensor, tuple[int, ...]]:
    """Return the frames (S x ...) of one sample of a stored trial, and their iteration numbers.

    The start at iteration 0, the snapshots the trial reached before its `last` iteration, the result there. `sample` counts
    the attack's guesses, so pass the one that was paired with the truth. What was not stored is left out; the result is
    always there.
    """
    import torch

    frames, at = [unit(tensors["inputs"][sample])], [last]
    if "snapshots" in tensors and "snapshots_at" in tensors:
        seen = tensors["snapshots_at"]
        inner = [i for i, step in enumerate(seen.tolist()) if 0 < step < last]
        frames[:0] = [unit(tensors["snapshots"][i, sample]) for i in inner]
        at[:0] = [int(seen[i]) for i in inner]
    if "start" in tensors:
        frames, at = [unit(tensors["start"][sample]), *frames], [0, *at]
    return torch.stack(frames), tuple(at)


def trace(tensors: Mapping[str, Tensor]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return a trial's mismatch and the iterations it was seen at, thinned evenly to `TRACE_POINTS`, both ends kept."""
    if "trace" not in tensors:
        return (), ()
    return _along(tensors, "trace"), tuple(int(at) for at in _along(tensors, "trace_at"))


def courses(tensors: Mapping[str, Tensor]) -> dict[str, tuple[float, ...]]:
    """Return by name the numbers that a trial found beside the pictures, at the iterations of its `trace`."""
    return {name.removeprefix(COURSE): _along(tensors, name) for name in tensors if name.startswith(COURSE)}


def _along(tensors: Mapping[str, Tensor], name: str) -> tuple[float, ...]:
    """Return one of the tensors that are kept along a trial's iterations, where the trial got, thinned."""
    if "trace_at" not in tensors:
        return ()
    values = zip(tensors[name].tolist(), tensors["trace_at"].tolist(), strict=True)
    return tuple(thin([float(value) for value, at in values if at >= 0], TRACE_POINTS))


def unit(picture: Tensor) -> Tensor:
    """Return a stored picture in [0, 1]: bytes are divided by 255, others taken as they are."""
    return picture.float() if picture.is_floating_point() else picture.float() / 255


def timeline(films_at: Sequence[Sequence[int]], *, positions: int = POSITIONS) -> list[int]:
    """Return the iterations at which the slider stops: all that any film shows, thinned evenly to `positions`.

    First and last are kept, so that the slider's ends are every film's start and every film's result.

    >>> timeline([(0, 5, 20), (0, 5, 40)])
    [0, 5, 20, 40]
    >>> timeline([range(101)], positions=5)
    [0, 25, 50, 75, 100]
    """
    return thin(sorted({at for film_at in films_at for at in film_at}), positions)


def thin(items: Sequence[T], most: int) -> list[T]:
    """Return at most `most` items, evenly spread, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]
