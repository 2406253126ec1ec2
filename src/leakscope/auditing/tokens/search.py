"""TAG and LAMP on the clients of a token audit: run within its time where the exact attacks left sentences."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.labels import JOINT
from leakscope.attacks.tokens.token_attacks import TOKEN_ATTACKS, TokenMatching
from leakscope.auditing.attempts import ENOUGH_SHARE, PROBE_SHARE, SPARE
from leakscope.auditing.limits import Budget, Pace, first_line
from leakscope.auditing.suite import Untested, labels_problem
from leakscope.core.errors import InputError
from leakscope.core.progress import Reporter
from leakscope.core.types import Outcome
from leakscope.models.dropout import KeyedDropout
from leakscope.play import Exposure, reconstruct
from leakscope.play.exposure import with_places
from leakscope.play.text_leak import TextLeak

PROBE = 8  # evaluations of which the pace is taken
LEAST_SECONDS = 5.0  # for an attack: a first evaluation takes about so long
FORM = "native"  # measuring others takes longer than these attacks have
PLACES = "TAG and LAMP were told which places of a sentence hold padding; a search for its length is untested"
MASKS = "a search that also optimises the masks of dropout (GRAB)"


@dataclass(frozen=True, slots=True)
class Searched:
    """What the searches recovered, a score for each; which could not run, and which ran too short for a good grade."""

    leaks: tuple[TextLeak, ...] = ()
    lines: tuple[str, ...] = ()
    untested: tuple[Untested, ...] = ()
    unfinished: tuple[str, ...] = ()
    interrupted: bool = False


def search_tokens(
    exposure: Exposure,
    budget: Budget,
    report: Reporter,
    score: Callable[[str, Tensor], TextLeak],
    padding: int | None = None,
) -> Searched:
    """Return what TAG and LAMP recover of all clients in the time left; `score` judges sentences (T x N x L) of an attack.

    They are told which places hold `padding`.
    """
    leaks, lines, untested, unfinished = list[TextLeak](), list[str](), list[Untested](), list[str]()
    exposure, known = with_places(exposure, padding)
    lines += [PLACES] if known else []
    unread = labels_problem(exposure.model, exposure.knowledge, exposure.observation.shares) is not None
    makers: dict[str, Callable[..., TokenMatching]] = {
        name: partial(make, labels=JOINT) if unread else make for name, make in TOKEN_ATTACKS.items()
    }
    for number, (name, make) in enumerate(makers.items()):
        most = make().matching.stop.iterations
        seconds = budget.left / (len(TOKEN_ATTACKS) - number)
        report("tokens", f"{name} on {exposure.trials} clients")
        try:
            iterations = fitting_iterations(exposure, make, seconds) if seconds >= LEAST_SECONDS else 0
            if iterations:
                until = budget.clock() + seconds
                execution = Execution(form=FORM, out_of_time=Pace(budget.clock, until))
                made = reconstruct(exposure, make(iterations=iterations), execution)
                iterations = int(made.iterations.min())
                if bool((made.outcome == Outcome.DIVERGED).all()):
                    unfinished.append(f"{name} diverged on every client")
                leak = score(name, made.inputs.long())
                leaks.append(leak)
                lines.append(f"{name}, {iterations} of {most} iterations: {leak.score_lines[0].partition(': ')[2]}")
        except KeyboardInterrupt:
            return Searched(
                tuple(leaks), tuple(lines), tuple(untested), (*unfinished, f"{name} was interrupted"), interrupted=True
            )
        except (InputError, RuntimeError, MemoryError) as error:
            untested.append(Untested(name, first_line(error)))
            unfinished.append(f"{name} could not run")
            continue
        if iterations < ENOUGH_SHARE * most:
            unfinished.append(f"{name} ran {iterations} of {most} iterations")
    if drops(exposure):
        untested.append(Untested(MASKS, "not implemented: masks are solved for exactly or not at all"))
        unfinished.append(MASKS)
    return Searched(tuple(leaks), tuple(lines), tuple(untested), tuple(unfinished))


def fitting_iterations(exposure: Exposure, make: Callable[..., TokenMatching], seconds: float) -> int:
    """Return how many iterations of an attack and its moves fit into `seconds`, by the pace of its first evaluations; 0 without time."""
    attack = make()
    most, search = attack.matching.stop.iterations, attack.search
    pace = Pace(most=PROBE, least=1)  # what goes before the first evaluation may take longer than the probe's share
    began = pace.clock()
    pace.until = began + PROBE_SHARE * seconds
    reconstruct(exposure, TokenMatching(attack.matching), Execution(form=FORM, out_of_time=pace))
    left = SPARE * seconds - (pace.clock() - began)
    if left <= 0 or not pace.seconds:
        return 0
    moves = 0.0 if search is None else search.tries / search.every
    starts = 0 if search is None else search.starts
    return max(0, min(most, math.floor((left / pace.seconds - starts) / (1 + moves))))


def drops(exposure: Exposure) -> bool:
    """Return whether a dropout hides what the clients' networks computed."""
    module = getattr(exposure.model.apply, "module", None)
    layers = module.modules() if isinstance(module, nn.Module) else ()
    return any(isinstance(each, KeyedDropout) and each.training and each.p > 0 for each in layers)
