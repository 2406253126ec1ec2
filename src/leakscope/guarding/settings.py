"""The settings of a guard, its decisions, and the result of one check."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from leakscope.auditing.limits import MOST, positive_number, whole_number
from leakscope.auditing.suite import PUBLISHED
from leakscope.auditing.target import list_defences
from leakscope.core.errors import InputError
from leakscope.core.registry import lookup
from leakscope.defences import Defence, RememberingDefence

MOST_SECONDS = 3600.0


class Decision(enum.Enum):
    """What happens to an update."""

    SEND = "send"
    WARN = "warn"  # it is sent, with a warning
    DEFEND = "defend"  # a defended update is sent, which was checked again
    REFUSE = "refuse"


class Status(enum.Enum):
    """How a check ended."""

    PASSED = "passed"
    LEAKED = "leaked"
    NOT_APPLICABLE = "not applicable"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    NOT_CHECKED = "not checked"


UNSEARCHED = ("static", "labels", "buffers")  # checks that attack no example
LEAST_EVALUATIONS = (
    200  # those in which small networks that leak are read back: `python benchmarks/guard.py --evaluations`
)
BROKEN = (Status.FAILED, Status.TIMED_OUT)


@dataclass(frozen=True, slots=True)
class Check:
    """One check of an update: the share of examples (or labels) that it read back, and what it cost."""

    name: str
    status: Status
    recovered: float | None = None
    seconds: float = 0.0
    evaluations: int | None = None  # of a matching attack
    note: str = ""
    by_structure: bool = False  # not applicable to any update of the model
    defended: bool = False  # of the update after the defence was added

    @property
    def exact(self) -> bool:
        """Return whether it is an attack by algebra, which costs little and runs in every round."""
        return self.evaluations is None and self.name not in UNSEARCHED


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardSettings:
    """When a guard acts, and how.

    `threshold` and `label_threshold` are the shares of examples and labels that may be read back: above, `action` is taken. Labels
    alone never act by default: those of small batches can always be read. `seconds` is the time for all checks. The matching
    `attacks` share what is left of it. Each searches at most `guesses` examples, so that its cost does not grow with the batch, and
    takes at most `evaluations`; one that the time cuts with fewer than `least_evaluations` has not checked anything
    (None: 200, or all `evaluations` if they are fewer). A check that raises or runs out of
    time stops the update, unless `fail_open`. With a `share`, matching attacks that passed once on a task rest until another run keeps
    the guard within this share of all rounds (see `GuardHistory`); exact checks never rest. `defences` are added by
    `Decision.DEFEND`. `log` is a file that gets one line of JSON a decision.
    """

    threshold: float = 0.0
    label_threshold: float = 1.0
    seconds: float = 20.0
    share: float | None = None
    action: Decision = Decision.REFUSE
    defences: Sequence[Defence] = ()
    fail_open: bool = False
    attacks: Sequence[str] = ("cpl", "ig")
    guesses: int = 16
    evaluations: int = 1000
    least_evaluations: int | None = None
    log: str | Path | None = None

    def __post_init__(self) -> None:
        for name in ("threshold", "label_threshold"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"GuardSettings.{name} must be a share in [0, 1], got {getattr(self, name)}")
        positive_number(self.seconds, "GuardSettings.seconds", MOST_SECONDS)
        if self.share is not None:
            positive_number(self.share, "GuardSettings.share", 1.0)
        whole_number(self.evaluations, "GuardSettings.evaluations", 1, MOST)
        whole_number(self.guesses, "GuardSettings.guesses", 1, MOST)
        if self.least_evaluations is not None:
            whole_number(self.least_evaluations, "GuardSettings.least_evaluations", 1, self.evaluations)
        if isinstance(self.attacks, str) or not self.attacks:
            raise InputError(f"GuardSettings.attacks must be names of {', '.join(PUBLISHED)}, got {self.attacks!r:.40}")
        for name in self.attacks:
            lookup(PUBLISHED, name, "attack of a guard")
        if self.action not in (Decision.REFUSE, Decision.WARN, Decision.DEFEND):
            raise InputError(f"GuardSettings.action must be Decision.REFUSE, WARN or DEFEND, got {self.action!r:.40}")
        given = list_defences(self.defences)
        if bool(given) != (self.action is Decision.DEFEND):
            raise InputError("GuardSettings.defences belong to Decision.DEFEND: give both or neither")
        if any(isinstance(each, RememberingDefence) for each in given):
            raise InputError("GuardSettings.defences must not remember: a guard keeps nothing between rounds")

    @property
    def enough(self) -> int:
        """Return from how many evaluations on a matching attack that the time cuts has checked an update."""
        return self.least_evaluations or min(self.evaluations, LEAST_EVALUATIONS)
