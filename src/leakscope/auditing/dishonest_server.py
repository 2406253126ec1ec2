"""The dishonest server of an audit: every manipulation that fits the network, played on the same clients, with a grade of its own.

A curious server only reads. A malicious one also chooses the weights that the clients get, with the part of the sample that no client
holds as its public examples. It never has a good grade: manipulations that are not built (SEER) may do what these cannot.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from leakscope.auditing.attack_runs import LEAST_PUBLIC, clients_batch, run_entries
from leakscope.auditing.attempts import Attempt, CutShort
from leakscope.auditing.limits import Budget, first_line
from leakscope.auditing.suite import PUBLISHED, Entry, Untested
from leakscope.auditing.target import Subject
from leakscope.auditing.verdict import RULES, Grade, Measures, excess, grade, measure, worst_run
from leakscope.core.errors import InputError, is_failure
from leakscope.core.progress import Reporter
from leakscope.core.short_repr import short_repr
from leakscope.core.threat_models import ThreatModel, threat_model_of
from leakscope.core.types import IMAGE_RANK
from leakscope.play import AttackResult, Exposure, shared_weights
from leakscope.play.dishonest import expose_manipulated
from leakscope.servers.catalogue import fishing
from leakscope.servers.imprint import Imprint
from leakscope.servers.loki import Loki
from leakscope.servers.manipulation import Manipulation
from leakscope.servers.soliton import SolitonBiases
from leakscope.servers.trap_weights import TrapWeights

BINS = 4  # of an inserted layer, for each example behind an update
FEWEST_BINS = 64
NOT_BUILT = Untested("SEER", "a decoder trained together with the network, which is not implemented")
ONE_EXAMPLE = "an update of one example needs no manipulation"
ONE_CLIENT = "it separates the clients of a sum, and this server sees single clients"


class Server(enum.StrEnum):
    """Who reads the updates."""

    CURIOUS = "curious"
    MALICIOUS = "malicious"


def read_server(word: str) -> Server:
    """Return the server that a user names."""
    if word == "honest":
        raise InputError(
            "an honest server reads no updates, so there is nothing to attack: `leakscope inspect` shows what updates reveal, an audit "
            "takes curious or malicious"
        )
    try:
        return Server(word)
    except ValueError:
        raise InputError(f"server must be curious or malicious, got {word!r:.40}") from None


@dataclass(frozen=True, slots=True, eq=False)
class Dishonest:
    """What a malicious server got of the clients of an audit, with a grade of its own."""

    grade: Grade
    measures: Measures
    runs: tuple[AttackResult, ...]
    worst: str  # the manipulation that got most; "" if none could be played
    recovered: int
    untested: tuple[Untested, ...]
    short: tuple[CutShort, ...]
    public: int
    threat_model: ThreatModel
    text: tuple[str, ...] = field(default=(), repr=False)  # what came back of sentences, a line each manipulation
    unfinished: tuple[str, ...] = ()  # manipulations that were cut short or failed: no gate is passed

    __repr__ = short_repr

    @property
    def headline(self) -> str:
        """Return the grade with its rule and the manipulation that got most."""
        asr = self.measures.asr
        most = "" if asr is None else f"; {self.worst} recovered {self.recovered} of {asr.n} examples"
        return f"grade {self.grade}: {RULES[self.grade]}{most}"

    @property
    def lines(self) -> tuple[str, ...]:
        """Return what each manipulation got, those cut short, and those that were not played with the reason."""
        return (
            *self.text,
            *(
                f"{run.name}: recovered {100 * run.summary.content.value:.0f} %, PSNR {run.summary.means['psnr'].value:.1f} dB"
                for run in self.runs
            ),
            *(f"{cut.name}: not tested long enough: {cut.words}" for cut in self.short),
            *(f"{item.what}: not tested: {item.why}" for item in self.untested),
        )


def play_dishonest(
    subject: Subject,
    exposure: Exposure,
    public: tuple[Tensor, Tensor],
    nulls: Sequence[AttackResult],
    budget: Budget,
    report: Reporter,
    *,
    seed: int,
) -> Dishonest:
    """Return what each manipulation gets from the clients of an exposure; `public` are examples that none of them holds."""
    entries, untested = planned_manipulations(subject, public[1])
    runs, short, unfinished = list[AttackResult](), list[CutShort](), list[str]()
    if len(public[0]) < LEAST_PUBLIC:
        why = f"the sample has {len(public[0])} examples that no client holds, and the server needs {LEAST_PUBLIC} as public ones"
        untested += [Untested(entry.name, why) for entry in entries]
        entries = []
    batch, seeds = clients_batch(subject, exposure.trials, seed)
    honest = shared_weights(subject.model, exposure.trials)
    for place, entry in enumerate(entries):
        report(entry.name, "a dishonest server")
        within = replace(budget, seconds=budget.used + budget.left / (len(entries) - place))
        manipulation = entry.make(entry.most or 0)
        if not isinstance(manipulation, Manipulation):
            raise TypeError(f"{entry.name} is no manipulation")
        try:
            given = (manipulation, subject.model, exposure.client, honest, batch, public[0], seeds)
            seen = expose_manipulated(*given)
        except (InputError, RuntimeError, MemoryError) as error:
            untested.append(Untested(entry.name, first_line(error)))
            unfinished += [f"{entry.name} failed"] if is_failure(error) else []
            continue
        done = run_entries(seen, [Attempt(entry, exposure.trials)], within, report)
        runs, short, untested = [*runs, *done.runs], [*short, *done.short], [*untested, *done.untested]
        unfinished += [line for line in done.unfinished if entry.most is not None or done.broken]
    worst = worst_run(runs, nulls)
    return Dishonest(
        grade=grade(runs, nulls, None, unfinished=[f"{NOT_BUILT.what} is not built"]) if runs else Grade.UNTESTED,
        measures=measure(runs, nulls, None),
        runs=tuple(runs),
        worst="" if worst is None else worst.name,
        recovered=0 if worst is None else int(excess(worst, nulls).sum()),
        untested=(*untested, NOT_BUILT),
        short=tuple(short),
        public=len(public[0]),
        threat_model=threat_model_of(local=True, public=True, manipulates=True),
        unfinished=tuple(unfinished),
    )


def planned_manipulations(subject: Subject, public_labels: Tensor) -> tuple[list[Entry], list[Untested]]:
    """Return the manipulations to play, set for the federation of a subject, and what cannot apply to it."""
    examples, clients, behind = subject.examples, subject.client.aggregation.clients, subject.behind
    made: dict[str, Callable[[int], Manipulation]] = {
        "imprint": lambda _: Imprint(),
        "imprint, inserted": lambda _: Imprint(inserted=max(FEWEST_BINS, BINS * behind)),
        "trap_weights": lambda _: TrapWeights(),
        "soliton_biases": lambda _: SolitonBiases(batch=max(2, behind)),
    }
    untested = []
    if clients > 1:
        made["loki"] = lambda _: Loki(clients, units=max(FEWEST_BINS, BINS * examples))
    else:
        untested.append(Untested("loki", ONE_CLIENT))
    entries = [Entry(name, make, None) for name, make in made.items()]
    if behind == 1 or subject.targets is not None or not len(public_labels):
        untested.append(Untested("fishing", ONE_EXAMPLE if behind == 1 else "it needs one class an example"))
        return entries, untested
    target = int(torch.bincount(public_labels).argmax())  # the commonest class of the public examples
    tv = 1e-4 if len(subject.model.input_shape) >= IMAGE_RANK else 0.0

    def fish(iterations: int) -> Manipulation:
        return fishing(target=target, batch=behind, iterations=max(1, iterations), tv=tv)

    return [*entries, Entry("fishing", fish, PUBLISHED["ig"])], untested
