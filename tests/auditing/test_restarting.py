"""An attack that stalls or diverges begins again; trials that ended well, and those of which no step could be taken, do not."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from leakscope.attacks.engine.plan import DEFAULT, Execution
from leakscope.attacks.recipes import cpl
from leakscope.attacks.restarting import STARTS, Restarting
from leakscope.auditing import Target
from leakscope.auditing.attack_runs import expose_clients
from leakscope.auditing.attempts import execution_on, find_cut, iterations_note, reconstruct
from leakscope.auditing.suite import Entry
from leakscope.auditing.target import make_subject
from leakscope.core.model import Model
from leakscope.core.types import Knowledge, Observation, Outcome, Reconstruction, Round, Seeds, Shares
from leakscope.models import from_module
from leakscope.play import reconstruct as plain

SHAPE = (2,)
TRIALS = 3


@dataclass(frozen=True)
class Drawn:
    """An attack whose end depends on its seed alone, by `ends`: mismatch, iterations, evaluations, outcome."""

    ends: dict[int, tuple[float, int, int, Outcome]]  # by the number of the start
    runs: list[list[int]] = field(default_factory=list)
    name: str = "drawn"

    def run(
        self, model: Model, observation: Observation, knowledge: Knowledge, seeds: Seeds, execution: Execution = DEFAULT
    ) -> Reconstruction:
        del model, knowledge
        assert observation.trials == len(seeds)
        self.runs.append(list(seeds))
        last = max(self.ends)
        each = [self.ends[min(seed // 2**32, last)] for seed in seeds]
        if execution.out_of_time is not None:
            execution.out_of_time(0)
        mismatch, iterations, evaluations, outcome = (torch.tensor(column) for column in zip(*each, strict=True))
        shown = torch.tensor(seeds, dtype=torch.float32).reshape(-1, 1, 1).expand(-1, 1, 2).clone()
        zero = torch.zeros(len(seeds), 1, dtype=torch.int64)
        return Reconstruction(
            inputs=shown, labels=zero, start=shown, mismatch=mismatch, iterations=iterations, evaluations=evaluations,
            outcome=outcome, trace=mismatch[:, None], trace_at=zero, snapshots=shown[:, None], snapshots_at=zero,
        )  # fmt: skip


def ran(base: Drawn, least: int, execution: Execution = DEFAULT, trials: int = TRIALS) -> Reconstruction:
    model = from_module(nn.Linear(2, 2), input_shape=SHAPE)
    value = {"w": torch.zeros(trials, 1)}
    seen = Observation((Round(value, {}, value),), Shares.GRADIENT, torch.ones(trials, dtype=torch.int64))
    known = Knowledge(input_shape=SHAPE, classes=2, samples=1)
    return Restarting(base, least).run(model, seen, known, list(range(trials)), execution)


STUCK = (0.5, 3, 60, Outcome.STALLED)


def test_stalled_trials_begin_again_until_the_share_is_used() -> None:
    base = Drawn({0: STUCK})
    result = ran(base, 30)
    assert bool((result.iterations >= 30).all())
    assert_close(result.evaluations, 20 * result.iterations)
    assert_close(result.learned[STARTS].long() * 3, result.iterations)
    drawn = [seed for run in base.runs for seed in run]
    assert len(drawn) == len(set(drawn))  # no start twice
    assert result.outcome.tolist() == [int(Outcome.STALLED)] * TRIALS


@pytest.mark.parametrize("end", [Outcome.CONVERGED, Outcome.EXHAUSTED, Outcome.PROVED])
def test_trials_that_ended_otherwise_do_not_begin_again(end: Outcome) -> None:
    base = Drawn({0: (0.5, 3, 60, end)})
    result = ran(base, 30)
    assert len(base.runs) == 1
    assert (result.iterations.tolist(), STARTS in result.learned) == ([3] * TRIALS, False)


def test_no_step_is_no_reason_to_begin_again() -> None:
    base = Drawn({0: (0.5, 0, 1, Outcome.STALLED)})
    assert ran(base, 30).iterations.tolist() == [0] * TRIALS
    assert len(base.runs) == 1


def test_the_smallest_mismatch_is_kept_and_ends_the_search_if_it_converged() -> None:
    diverged = (math.nan, 2, 9, Outcome.DIVERGED)
    base = Drawn(
        {0: diverged, 1: STUCK, 2: (0.7, 3, 60, Outcome.STALLED), 3: (1e-5, 4, 80, Outcome.CONVERGED), 4: STUCK}
    )
    result = ran(base, 10_000, trials=1)
    assert result.outcome.tolist() == [int(Outcome.CONVERGED)]
    assert result.mismatch.tolist() == [pytest.approx(1e-5)]
    assert result.inputs.flatten().tolist() == [3 * 2**32] * 2
    assert result.iterations.tolist() == [2 + 3 + 3 + 4]


def test_the_time_ends_the_starts() -> None:
    asked: list[int] = []

    def over(evaluations: int) -> bool:
        asked.append(evaluations)
        return len(asked) > 4

    base = Drawn({0: STUCK})
    result = ran(base, 10**6, replace(DEFAULT, out_of_time=over))
    assert len(base.runs) == 3
    assert asked == sorted(asked)  # later starts count on from earlier ones
    assert bool((result.iterations < 10**6).all())


def test_a_real_attack_that_stalls_gets_closer_by_other_starts() -> None:
    """L-BFGS without line search gets stuck on weights as wide as these."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 12), nn.Sigmoid(), nn.Linear(12, 3))
    for weight in module.parameters():
        nn.init.uniform_(weight, -3, 3)
    inputs, labels = torch.rand(24, 6, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 3
    exposure = expose_clients(make_subject(Target(model=module, inputs=inputs, labels=labels)), 6, 0)
    entry = Entry("cpl", lambda most: cpl(iterations=most), 40)
    alone = plain(exposure, entry.make(40), execution_on(exposure.device))
    again = reconstruct(exposure, entry, 40)
    early = ((alone.outcome == Outcome.STALLED) | (alone.outcome == Outcome.DIVERGED)) & (alone.iterations < 10)
    assert bool(early.any())
    assert bool(((again.iterations >= 10) | (again.outcome == Outcome.CONVERGED))[early].all())
    assert bool((again.mismatch.nan_to_num(torch.inf) <= alone.mismatch.nan_to_num(torch.inf)).all())
    assert "starts" in iterations_note(entry, 40, again)
    assert find_cut("cpl", alone, 40) is not None
    assert find_cut("cpl", again, 40) is None
