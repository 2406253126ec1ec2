"""The insider's start as a file names it; `sweep.objects` replaces it by `leakscope.attacks.starts.Insider`, which holds the images."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.core.types import Knowledge


@dataclass(frozen=True, slots=True)
class PublicExample:
    """A public example of the same class as the private one, drawn from the trial's seed (the insider of CPL, table 4)."""

    def __call__(self, key: Tensor, knowledge: Knowledge) -> Tensor:
        """Raise: without a data set there is no public example."""
        del key, knowledge
        raise InputError(
            "the start 'insider' takes its pictures from a scenario's data set; pass Insider(pictures) here"
        )
