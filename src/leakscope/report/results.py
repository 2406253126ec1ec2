"""What a page is made from, wherever it came from: the sheet of a sweep, and the pictures of its trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from leakscope.report.sheet import Sheet, Stored, sheet_of

if TYPE_CHECKING:
    from torch import Tensor

Tensors = Mapping[str, "Tensor"]


class StoredRun(Stored, Protocol):
    """What a page needs of a stored run (`leakscope.store.Run`)."""

    def facts(self) -> dict[str, str]:
        """Return where results come from: versions, revision, machine, command."""

    def scenario(self) -> str:
        """Return the text of the scenario."""

    def plans(self) -> list[dict[str, object]]:
        """Return the plans: id, created, plan."""

    def tensors(self, trial: str) -> dict[str, Tensor]:
        """Return the pictures of a trial, {} where none were kept."""


@dataclass(frozen=True, slots=True, eq=False)
class Results:
    """The sheet of a sweep and the way to the pictures of its trials."""

    sheet: Sheet
    find: Callable[[str], Tensors]
    _known: dict[str, Tensors] = field(default_factory=dict)

    def tensors(self, row: int) -> Tensors:
        """Return the tensors of the trial that a row of the sheet belongs to; each trial is read once."""
        trial = str(self.sheet.columns["trial"][row])
        if trial not in self._known:
            self._known[trial] = self.find(trial)
        return self._known[trial]


def results_of(run: StoredRun) -> Results:
    """Return the results of a stored run."""
    return Results(sheet_of(run), run.tensors)
