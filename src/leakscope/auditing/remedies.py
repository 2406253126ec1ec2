"""The remedies an audit tries, what was found about each of them, and in which order they are told.

Strengths are relative to the update itself, so that they mean the same for every model: noise and clips in units of its own
length. A defence that is already configured stays; the remedy is put in front or behind as the stack's rules allow.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from leakscope.core.errors import InputError
from leakscope.core.tree import count, lift, norm
from leakscope.core.types import Outcome, direction
from leakscope.defences import DEFENCES, Defence
from leakscope.defences.stack import check_stack
from leakscope.defences.strengths import Unit, strengths_of
from leakscope.metrics import estimate_mean
from leakscope.play import AttackResult, Exposure

ONE_STRENGTH = "one strength"
FEWEST = 4  # clients; an interval over fewer says nothing
COST = 0.01  # of accuracy; below that, losses are not told apart
ELSEWHERE = (
    ("transformed pictures", "no strengths are declared for it; set on_data of the client and audit again"),
    ("a private head", "no strengths are declared for it; set on_model of the client and audit again"),
)  # (what, why): defences outside the table of those on the update


class Finding(enum.Enum):
    """What the attacker who knows a remedy says about it; the value is the word for people."""

    HELPS = "helps"
    USELESS = "does not help"
    CHANCE = "may be chance, with so few examples"
    SHORT = "not tested long enough"
    BLIND = "met no attacker who knows it"


@dataclass(frozen=True, slots=True, eq=False)
class Remedy:
    """A defence at one strength: what the attack still recovers under it, and the accuracy it costs (None: not measured).

    `met` says which attack it met, with how many iterations.
    """

    name: str
    strength: str
    defence: Defence
    run: AttackResult
    finding: Finding
    met: str = ""
    accuracy: float | None = None
    lost: float | None = None

    @property
    def words(self) -> str:
        """Return its name and strength."""
        return f"{self.name} ({self.strength})"

    @property
    def confirmed(self) -> str:
        """Return which attack it stood against to the end; "" where it did not."""
        return self.met if self.finding is Finding.HELPS else ""

    @property
    def recovered(self) -> float:
        """Return the share of examples still recovered."""
        return self.run.summary.content.value

    @property
    def psnr(self) -> float:
        """Return the mean PSNR of what comes back."""
        return self.run.summary.means["psnr"].value


def remedies_for(exposure: Exposure) -> list[tuple[str, str, Defence]]:
    """Return (name, strength in words, defence) of every registered defence, at the two strengths that it declares.

    All come at their weaker strength first, so that a short budget has seen every kind; one that declares none comes once.
    """
    update = direction(exposure.observation.rounds[0], exposure.observation.shares)
    length = float(lift(norm)(update).median())
    size = length / math.sqrt(count(update) / exposure.batch.trials)  # root mean square of a coordinate
    units = {Unit.ONE: None, Unit.COORDINATE: size, Unit.LENGTH: length}
    weak: list[tuple[str, str, Defence]] = []
    strong: list[tuple[str, str, Defence]] = []
    for name, make in DEFENCES.items():
        strengths = strengths_of(make)
        if strengths is None:
            weak.append((name, ONE_STRENGTH, make()))
            continue
        unit = units[strengths.unit]
        for options, strength in ((weak, strengths.weak), (strong, strengths.strong)):
            value = strength if unit is None else strength * unit
            words = f"{strengths.setting} {value:g}" if unit is None else f"{strengths.setting} {value:.2g}"
            options.append((name, words, make(**{strengths.setting: value})))
    return [*weak, *strong]


def find(run: AttackResult, control: AttackResult, *, whole: bool, knows: bool) -> Finding:
    """Return what a run under a remedy shows, beside the control without it.

    Compared are the shares recovered, example by example of the same clients, or, where the control recovered nothing, the PSNRs. That
    a remedy does not help is shown by any attack that gets as much, however short. That it helps is shown only by an attacker who
    knows it, whose attack was `whole` (it was given the iterations of its authors), and where the 95 % interval of the difference
    is above 0 over at least `FEWEST` clients (PSNRs: where the two intervals do not meet).
    """
    shares = control.summary.content.value > 0
    before, after = (each.summary.content if shares else each.summary.means["psnr"] for each in (control, run))
    if after.value >= before.value:
        return Finding.USELESS
    if not (_falls(control, run) if shares else after.high < before.low):
        return Finding.CHANCE
    if not knows:
        return Finding.BLIND
    return Finding.HELPS if whole else Finding.SHORT


def _falls(control: AttackResult, run: AttackResult) -> bool:
    """Return whether what is recovered falls beyond chance: intervals of the difference, clustered by client."""
    gone = control.recovered.double() - run.recovered.double()
    lost = estimate_mean(gone, control.scores.scored)
    return lost.trials >= FEWEST and lost.low > 0


def cut_off(run: AttackResult) -> bool:
    """Return whether some trial used up its iterations: with more it might go on."""
    return bool((run.reconstruction.outcome == Outcome.EXHAUSTED).any())


def by_leakage(remedy: Remedy) -> tuple[float, float]:
    """Return the order by what is still recovered, then by how close it comes."""
    return (remedy.recovered, remedy.psnr)


def by_cost(before: float) -> Callable[[Remedy], tuple[float, float]]:
    """Return the order by the share no longer recovered per accuracy lost, best first."""

    def key(remedy: Remedy) -> tuple[float, float]:
        lost = max(remedy.lost or 0.0, 0.0) + COST
        return (-(before - remedy.recovered) / lost, remedy.psnr)

    return key


def stacked(configured: Sequence[Defence], added: Defence) -> tuple[Defence, ...]:
    """Return the configured defences with one more, behind or before them, whichever the rules of a stack allow."""
    behind, before = (*configured, added), (added, *configured)
    try:
        check_stack(behind)
    except InputError:
        check_stack(before)
        return before
    return behind
