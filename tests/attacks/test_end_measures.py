"""Numbers taken where an attack ended: DLFA's similarity loss against local training by hand; nothing else changes by them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tests.attacks.conftest import World
from tests.attacks.test_dlfa import LOCAL, N, small
from torch import Tensor
from torch.testing import assert_close

from leakscope.attacks.attack import Matching, best_restart
from leakscope.attacks.distances import cosine
from leakscope.attacks.dlfa import COPIES, SIMILARITY, dlfa
from leakscope.attacks.engine import end_measures as measured
from leakscope.attacks.engine.forms import FORMS
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.engine.runner import run_problem
from leakscope.attacks.engine.state import Finished
from leakscope.attacks.objectives import Match
from leakscope.attacks.priors import GUESS
from leakscope.attacks.recipes import ig_update, sme
from leakscope.attacks.view import Facts, View
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.tree import take
from leakscope.core.types import LocalTraining
from leakscope.kernels.memory import peak_bytes
from leakscope.learning.local import draw_order

DOUBLE = Execution(dtype="float64", form="native", chunk=8)
CLOSE = {SIMILARITY: Match(distance=cosine)}
LOOP = Execution(dtype="float64", form="loop")


def ends(how: Matching, w: World) -> Finished:
    """Return the end of each trial's best restart."""
    problem, restarts = how.prepare(w.model, w.observation, w.knowledge, w.seeds, DOUBLE)
    made = run_problem(w.model, problem, how.stop, DOUBLE, "", how.most_evaluations())
    return take(made, best_restart(made, restarts))


def similarity_loss(w: World, trial: int, copies: Tensor) -> float:
    """Train on the copies by hand, one an epoch, in the attacker's order; 1 - cos of what that and the client changed."""
    module = w.model.apply.module  # type: ignore[attr-defined]
    labels, losses = w.batch.labels[trial], []
    for seen in w.observation.rounds:
        before = {n: v[trial] for n, v in seen.before.items()}
        now = {n: v.clone().requires_grad_() for n, v in before.items()}
        for step, batch in enumerate(draw_order(LOCAL, N, random.key(w.seeds[trial])).tolist()):
            index = [i for i in batch if i >= 0]
            logits = torch.func.functional_call(module, now, (copies[step // 2, index],))
            slopes = torch.autograd.grad(F.cross_entropy(logits, labels[index]), now.values())
            now = {
                n: (v - LOCAL.rate * g).detach().requires_grad_() for (n, v), g in zip(now.items(), slopes, strict=True)
            }
        ours = torch.cat([(before[n] - now[n].detach()).flatten() for n in before])
        theirs = torch.cat([(before[n] - seen.sent[n][trial]).flatten() for n in before])
        losses.append(1 - float(F.cosine_similarity(ours, theirs, dim=0)))
    return sum(losses) / len(losses)


def prepared(trials: int = 2, local: LocalTraining = LOCAL) -> tuple[World, Finished, Facts]:
    """Return a world, trials that ended where they began, and the facts of their lanes."""
    w = small(local, trials=trials)
    problem, _ = dlfa().prepare(w.model, w.observation, w.knowledge, w.seeds, DOUBLE)
    n = torch.zeros(trials, dtype=torch.int64)
    ended = Finished(problem.unknowns, n, n, n, n, n, n, {}, n, n)
    return w, ended, problem.facts


def by_hand(w: World, ended: Finished) -> list[float]:
    copies = torch.cat([ended.unknowns[GUESS][:, None], ended.unknowns[COPIES]], dim=1)
    return [similarity_loss(w, trial, copies[trial]) for trial in range(len(copies))]


def test_dlfas_similarity_loss_is_that_of_local_training_by_hand() -> None:
    w, how = small(), dlfa(iterations=2)
    made = how.run(w.model, w.observation, w.knowledge, w.seeds, DOUBLE)
    assert made.learned[SIMILARITY].tolist() == pytest.approx(by_hand(w, ends(how, w)), rel=1e-9)
    assert not made.courses


def test_of_restarts_the_best_one_is_measured() -> None:
    w, how = small(), dlfa(iterations=1, restarts=3)
    made = how.run(w.model, w.observation, w.knowledge, w.seeds, DOUBLE)
    assert made.learned[SIMILARITY].tolist() == pytest.approx(by_hand(w, ends(how, w)), rel=1e-9)


def test_rounds_are_averaged() -> None:
    w, how = small(), dlfa(iterations=1)
    first = w.observation.rounds[0]
    other = replace(first, sent={n: v + 0.01 * v.sin() for n, v in first.sent.items()})
    w = replace(w, observation=replace(w.observation, rounds=(first, other)))
    made = how.run(w.model, w.observation, w.knowledge, w.seeds, DOUBLE)
    assert made.learned[SIMILARITY].tolist() == pytest.approx(by_hand(w, ends(how, w)), rel=1e-9)


@pytest.mark.parametrize("execution", [Execution(form="native", chunk=3), Execution(form="loop", chunk=3)])
def test_a_trial_alone_has_the_bits_it_has_among_others(execution: Execution) -> None:
    w, how = small(trials=3), dlfa(iterations=1)
    whole = how.run(w.model, w.observation, w.knowledge, w.seeds, execution).learned[SIMILARITY]
    for trial in range(3):
        part = slice(trial, trial + 1)
        seen, knowledge = take((w.observation, w.knowledge), part)
        alone = how.run(w.model, seen, knowledge, w.seeds[part], execution).learned[SIMILARITY]
        assert torch.equal(alone, whole[part])


@pytest.mark.parametrize("form", FORMS)
def test_every_form_measures_the_same(form: str) -> None:
    w, ended, facts = prepared()
    made = measured.measure_ends(w.model, facts, ended, torch.arange(2), CLOSE, replace(DOUBLE, form=form))
    assert made[SIMILARITY].tolist() == pytest.approx(by_hand(w, ended), rel=1e-9)


def test_what_cannot_be_measured_together_is_measured_one_by_one() -> None:
    def undecided(view: View) -> Tensor:
        value = cosine(view.simulated.update, view.observed)
        return value if float(value.detach()) > 0 else -value  # a decision by a tensor's value: vmap refuses

    w, ended, facts = prepared()
    made = measured.measure_ends(w.model, facts, ended, torch.arange(2), {"own": undecided}, DOUBLE)
    assert made["own"].tolist() == pytest.approx(by_hand(w, ended), rel=1e-9)


def test_when_memory_runs_out_the_trials_are_measured_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(measured, "lift", lambda _: short)
    w, ended, facts = prepared()
    made = measured.measure_ends(w.model, facts, ended, torch.arange(2), CLOSE, DOUBLE)
    assert made[SIMILARITY].tolist() == pytest.approx(by_hand(w, ended), rel=1e-9)


@pytest.mark.parametrize(
    ("execution", "widths"),
    [
        (Execution(dtype="float64", memory=1), [1] * 6),
        (Execution(dtype="float64", memory=10**9), [6]),
        (replace(DOUBLE, memory=10**9, chunk=4), [4, 2]),
        (replace(DOUBLE, chunk=3), [3, 3]),
    ],
)
def test_trials_are_measured_in_chunks_that_fit(
    execution: Execution, widths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    together = measured._Ends._together

    def watched(self: measured._Ends, part: Tensor) -> Tensor:
        taken.append(len(part))
        return together(self, part)

    monkeypatch.setattr(measured._Ends, "_together", watched)
    w, ended, facts = prepared(6)
    made = measured.measure_ends(w.model, facts, ended, torch.arange(6), CLOSE, execution)
    assert made[SIMILARITY].shape == (6,)
    assert taken == widths


def test_a_longer_simulation_needs_no_more_memory_beside_its_copies() -> None:
    peaks, copies = [], []
    for epochs in (2, 20):
        w, ended, facts = prepared(1, LocalTraining(epochs=epochs, batch_size=2, rate=0.05))
        alone = (w.model, facts, ended, torch.arange(1), CLOSE, LOOP)
        peaks.append(peak_bytes(lambda alone=alone: measured.measure_ends(*alone)))  # type: ignore[misc]
        copies.append(sum(v.numel() * v.element_size() for v in ended.unknowns.values()))
    assert peaks[1] < peaks[0] + 4 * (copies[1] - copies[0])


def test_measuring_changes_nothing_else() -> None:
    w, how = small(), dlfa(iterations=1)
    bare = replace(how, measures={})
    made, without = (each.run(w.model, w.observation, w.knowledge, w.seeds, DOUBLE) for each in (how, bare))
    assert_close(made.inputs, without.inputs, rtol=0, atol=0)
    assert torch.equal(made.mismatch, without.mismatch)
    assert without.learned == {}
    stamps = {
        each._stamp(w.model, each.prepare(w.model, w.observation, w.knowledge, w.seeds)[0]) for each in (how, bare)
    }
    assert len(stamps) == 1  # a run that was begun without is gone on with


def test_attacks_that_match_by_the_cosine_measure_nothing_more() -> None:
    assert not sme().measures
    assert not ig_update().measures


def test_a_measure_must_not_have_the_name_of_an_unknown() -> None:
    with pytest.raises(InputError, match=r"Matching\.measures .*'copies'"):
        replace(dlfa(), measures={COPIES: Match()})
