"""Films of an attack: the frames of one picture, and the timeline that one slider shares between many films."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from leakscope.core.types import Reconstruction

POSITIONS = 48


def film(reconstruction: Reconstruction, trial: int, sample: int) -> tuple[Tensor, tuple[int, ...]]:
    """Return the frames (S x ...) of one sample of one trial, and their iteration numbers.

    The start at iteration 0, the snapshots the trial reached before its end, the result at its last iteration.
    `sample` counts the attack's guesses, so pass the one that was paired with the truth.
    """
    last = int(reconstruction.iterations[trial])
    seen = reconstruction.snapshots_at[trial]
    inner = (seen > 0) & (seen < last)
    start, result = reconstruction.start[trial, sample], reconstruction.inputs[trial, sample]
    middle = reconstruction.snapshots[trial, inner, sample]
    frames = result.new_empty((len(middle) + 2, *result.shape))
    frames[0], frames[1:-1], frames[-1] = start, middle, result
    return frames, (0, *(int(at) for at in seen[inner]), last)


def timeline(films_at: Sequence[Sequence[int]], *, positions: int = POSITIONS) -> list[int]:
    """Return the iterations at which the slider stops: all that any film shows, thinned evenly to `positions`.

    First and last are kept, so that the slider's ends are every film's start and every film's result.

    >>> timeline([(0, 5, 20), (0, 5, 40)])
    [0, 5, 20, 40]
    >>> timeline([range(101)], positions=5)
    [0, 25, 50, 75, 100]
    """
    known = sorted({at for film_at in films_at for at in film_at})
    if len(known) <= positions:
        return known
    return [known[round(i * (len(known) - 1) / (positions - 1))] for i in range(positions)]
