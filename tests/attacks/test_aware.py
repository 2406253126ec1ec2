"""The attacker who knows: unchanged where nothing is told, minimal at the truth, composed, and better on real digits."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from leakscope.attacks.attack import Matching
from leakscope.attacks.aware import LENGTH, PULL, AveragedDropout, KnownDropout, aware, merge_rounds
from leakscope.attacks.defended import Clipped, LargestSent, Rounded, Sent, Whitened, bound_of
from leakscope.attacks.distances import angle, cosine, disagreement, l2, squared_l2
from leakscope.attacks.engine.forms import evaluate_one
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.labels import LABEL_RULES
from leakscope.attacks.objectives import Match, reported
from leakscope.attacks.optimisers import Adam
from leakscope.attacks.polarised import spn_aware
from leakscope.attacks.priors import GUESS
from leakscope.attacks.recipes import cpl, dlg, idlg, ig
from leakscope.attacks.simulate import LocalSteps, OneGradient, OnTheLine
from leakscope.attacks.surrogate import ig_update, sme
from leakscope.attacks.translate import ThroughMap
from leakscope.attacks.units import AtLeast, InNoiseUnits, PerGradient, Scaled, ToLength
from leakscope.attacks.view import Clock, Components, Facts, Simulated, View
from leakscope.clients import Client, attacker_knowledge
from leakscope.clients.client import knowledge_of_defences
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import Tree, map_tensors, take, to
from leakscope.core.types import Batch, Knowledge, LocalTraining, Observation, Outcome, Shares, make_batch
from leakscope.data import load
from leakscope.defences import (
    Clip,
    DeepCompression,
    Defence,
    GaussianNoise,
    Quantise,
    RandomMask,
    Sign,
    Sparsify,
)
from leakscope.models import Torch, Uniform, build, draw_parameters
from leakscope.scenario import scenario_of
from leakscope.sweep.driver import run_scenario
from leakscope.sweep.engines import serial

TRIALS, SEEDS = 4, [0, 1, 2, 3]
QUICK = Execution(form="native")
PLAIN = Knowledge((1, 8, 8), 10, 1)
ONES = torch.ones(TRIALS)


@cache
def network(width: int = 6, dropout: float = 0.0) -> Model:
    return build("lenet_cpl", (1, 8, 8), 10, {"width": width, "dropout": dropout})


@cache
def digits(trials: int = TRIALS) -> Batch:
    data, index = load("digits"), torch.arange(trials)
    return make_batch(data.pictures("test", index)[:, None], data.labels("test", index)[:, None], classes=10)


def seen_by(
    client: Client, model: Model | None = None, dtype: torch.dtype = torch.float32, batch: Batch | None = None
) -> tuple[Observation, Knowledge]:
    """Return what the server saw of the digits, and what an attacker who knows the defences is told."""
    model, batch = to((model or network(), batch or digits()), dtype=dtype)
    seeds = list(range(batch.trials))
    weights = to(draw_parameters(model, Uniform(0.5), random.key(seeds)), dtype=dtype)
    seen = client.observe(model, weights, batch, seeds)
    return seen, knowledge_of_defences(attacker_knowledge(model, client, batch), client, seen)


def without_pull(objective: Any) -> Any:
    """Return an objective in which the distance to the rounded update itself counts nothing."""
    if isinstance(objective, Rounded):
        return replace(objective, pull=0.0)
    return replace(objective, inner=without_pull(objective.inner)) if hasattr(objective, "inner") else objective


def unaware(knowledge: Knowledge) -> Knowledge:
    return replace(knowledge, mask=None, bound=None, bits=None, sigma=None, sigma_each=None)


def error(attack: Matching, seen: Observation, knowledge: Knowledge, model: Model | None = None) -> tuple[float, Any]:
    made = attack.run(model or network(), seen, knowledge, SEEDS, QUICK)
    return float((made.inputs.clamp(0, 1) - digits().inputs).square().mean()), made


# -- what is told decides what is changed


@pytest.mark.parametrize("attack", [cpl(), ig()], ids=["cpl", "ig"])
def test_nothing_told_changes_nothing(attack: Matching) -> None:
    assert aware(attack, PLAIN) is attack
    assert aware(attack, PLAIN, reclip=True, simulate=True) is attack
    assert aware(attack, replace(PLAIN, local=LocalTraining())) is attack


def test_each_fact_has_its_comparison() -> None:
    mask = {"w": torch.ones(TRIALS, 2)}
    known = {
        "mask": aware(cpl(), replace(PLAIN, mask=mask)),
        "largest": aware(cpl(), replace(PLAIN, mask=mask, largest=True)),
        "bound": aware(cpl(), replace(PLAIN, bound=0.1 * ONES)),
        "reclip": aware(cpl(), replace(PLAIN, bound=0.1 * ONES), reclip=True),
        "signs": aware(cpl(), replace(PLAIN, bits=torch.full((TRIALS,), 1))),
        "bits": aware(cpl(), replace(PLAIN, bits=torch.full((TRIALS,), 4))),
        "sigma": aware(cpl(), replace(PLAIN, sigma=0.1 * ONES)),
        "sigma_each": aware(cpl(), replace(PLAIN, sigma=0.1 * ONES, sigma_each={"w": 0.1 * ONES})),
    }
    assert {name: attack.objective for name, attack in known.items()} == {
        "mask": Scaled(Sent(), LENGTH**2),
        "largest": Scaled(LargestSent(), LENGTH**2),
        "bound": Scaled(Match(angle), LENGTH**2),
        "reclip": Scaled(Clipped(), ToLength(1.0, LENGTH)),
        "signs": Scaled(Match(disagreement), LENGTH**2),
        "bits": Scaled(Rounded(pull=PULL), AtLeast(1.0, LENGTH**2)),
        "sigma": InNoiseUnits(slack=1e-4),
        "sigma_each": InNoiseUnits(Whitened(), 1e-4),
    }
    assert known["sigma"].stop == known["sigma_each"].stop == replace(cpl().stop, threshold=1.0)
    for attack in (made for name, made in known.items() if not name.startswith("sigma")):
        assert replace(attack, objective=cpl().objective) == cpl()


def test_what_was_not_sent_is_no_larger_than_the_smallest_that_was() -> None:
    sent = {"a": torch.tensor([3.0, 0.0, 0.0]), "b": torch.tensor([0.0, -2.0])}
    guess = {"a": torch.tensor([3.0, 2.5, -1.0]), "b": torch.tensor([-4.0, -2.0])}
    ones = {name: torch.ones_like(value) for name, value in sent.items()}
    for each, excess in ((False, 0.5**2 + 2.0**2), (True, 2.0**2)):
        known = replace(PLAIN, mask=ones, largest=True, largest_each=each)
        view = View({}, Simulated(guess, torch.zeros(1), torch.zeros(1)), sent, None, known, None)  # type: ignore[arg-type]
        assert float(LargestSent()(view)) == pytest.approx(excess)
        assert float(Sent()(view)) == 0.0


def test_that_the_largest_were_sent_is_told_of_sparsification_alone() -> None:
    for defences, told_ in (
        ((Sparsify(0.5),), (True, False)),
        ((Sparsify(0.5, each=True),), (True, True)),
        ((RandomMask(0.5),), (False, False)),
        ((Sparsify(0.5), Clip(0.1)), (False, False)),
    ):
        _, knowledge = seen_by(Client(defences=defences))
        assert (knowledge.largest, knowledge.largest_each) == told_
    for inner in (Match(cosine), Clipped()):
        with pytest.raises(InputError, match="LargestSent needs"):
            LargestSent(inner)


def test_facts_come_together() -> None:
    mask, bits = {"w": torch.ones(TRIALS, 2)}, torch.full((TRIALS,), 6)
    every = aware(cpl(), replace(PLAIN, mask=mask, bound=ONES, bits=bits, sigma=0.1 * ONES))
    gain = ToLength(AtLeast(LENGTH**2, LENGTH**2), LENGTH)
    assert every.objective == InNoiseUnits(Scaled(Sent(Clipped(Rounded(pull=PULL))), gain), 1e-4)
    blind = aware(cpl(), replace(PLAIN, mask=mask, bound=ONES, sigma=0.1 * ONES))
    assert (blind.objective, blind.stop) == (Scaled(Sent(Match(angle)), LENGTH**2), cpl().stop)
    signs = aware(cpl(), replace(PLAIN, mask=mask, bits=torch.full((TRIALS,), 1), sigma=0.1 * ONES))
    assert (signs.objective, signs.stop) == (Scaled(Sent(Match(disagreement)), LENGTH**2), cpl().stop)


def test_what_is_weighed_against_priors_keeps_its_weight() -> None:
    mask = {"w": torch.ones(TRIALS, 2)}
    assert aware(ig(), replace(PLAIN, mask=mask)).objective == Sent(Match(cosine))
    assert aware(ig(), replace(PLAIN, bound=ONES)).objective == Match(cosine)
    pulled = cpl(alpha=0.1)
    assert aware(pulled, replace(PLAIN, mask=mask)).objective == Sent()
    assert aware(pulled, replace(PLAIN, sigma=ONES)).objective == Match()
    assert aware(ig(), replace(PLAIN, sigma=ONES, sigma_each={"w": ONES})).objective == Whitened(Match(cosine))
    few, signs = (replace(PLAIN, bits=torch.full((TRIALS,), bits)) for bits in (4, 1))
    assert aware(ig(), few).objective == Rounded(Match(cosine), PULL)
    assert aware(pulled, few).objective == Rounded(pull=PULL)
    assert aware(ig(), signs).objective == Match(disagreement)
    assert aware(pulled, signs).objective == Scaled(Match(disagreement), LENGTH**2)
    assert aware(pulled, replace(few, bound=ONES)).objective == Scaled(
        Clipped(Rounded(pull=PULL)), ToLength(1.0, LENGTH)
    )


# -- a trial by itself


def mismatch_beside(known: Knowledge, other: Knowledge, **how: bool) -> tuple[Tensor, Tensor]:
    """Return the reported mismatch of a trial attacked alone, and of the same one with another trial in its chunk."""
    update = {"w": torch.tensor([0.3, -0.1, 0.2]), "b": torch.tensor([0.05, 0.02])}
    guess = {name: value.flip(0) for name, value in update.items()}
    together: Knowledge = map_tensors(lambda a, b: torch.cat([a, b]), known, other)
    made = []
    for knowledge in (known, together):
        match = aware(cpl(), knowledge, **how).objective
        seen = View({}, Simulated(guess, torch.zeros(1), torch.zeros(1)), update, None, take(knowledge, 0), None)  # type: ignore[arg-type]
        made.append(reported(match, seen, match(seen)))
    return made[0], made[1]


@pytest.mark.parametrize("how", [{}, {"reclip": True}, {"simulate": True}, {"reclip": True, "simulate": True}], ids=str)
@pytest.mark.parametrize("bits", [None, 6], ids=["clip", "clip, then bits"])
@pytest.mark.parametrize("local", [None, LocalTraining(epochs=3, batch_size=1, rate=0.2)], ids=["gradient", "weights"])
def test_the_mismatch_of_a_clipped_trial_is_its_own(
    local: LocalTraining | None, bits: int | None, how: dict[str, bool]
) -> None:
    """Neither the bound nor the size of a client beside it says anything of a trial."""
    one, other = (
        replace(
            PLAIN,
            samples=3,
            local=local,
            present=None if local is None else torch.arange(3)[None] < size,
            bound=torch.tensor([bound]),
            bits=None if bits is None else torch.tensor([bits]),
        )
        for bound, size in ((0.005, 1), (10.0, 3))
    )
    alone, beside = mismatch_beside(one, other, **how)
    assert torch.equal(alone, beside)
    assert float(alone) > 0


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("simulate", [False, True])
def test_a_clipped_update_counts_as_one_of_length_ten(simulate: bool, size: int) -> None:
    """The larger of 10 / bound, 10 and 1, squared, in the unit of what is compared."""
    local = LocalTraining(epochs=3, batch_size=1, rate=0.2)
    length = 3 * size * 0.2
    guess, zero = {"w": torch.full((4,), 100.0)}, {"w": torch.zeros(4)}
    for bound in (0.01, 0.5, 1000.0):
        known = replace(PLAIN, samples=3, local=local, bound=torch.tensor([bound]))
        known = replace(known, present=torch.arange(3)[None] < size)
        for bits in (None, 6):
            every = replace(known, bits=None if bits is None else torch.tensor([bits]))
            match = aware(cpl(), every, reclip=True, simulate=simulate).objective
            match, shares = without_pull(match), Shares.WEIGHTS if simulate else Shares.GRADIENT
            made = Simulated(guess, torch.zeros(1), torch.zeros(1))
            view = View({}, made, zero, None, take(every, 0), None, shares)  # type: ignore[arg-type]
            unit = 1.0 if simulate else length
            gain = max(LENGTH * unit / bound, 1 / length if simulate else 1.0, LENGTH if bits else 0.0)
            reach = min(200.0, bound / unit)  # the guess has length 200
            assert float(match(view)) == pytest.approx((gain * reach) ** 2, rel=1e-5)


def test_a_clipped_cell_is_attacked_alike_alone_and_in_a_grid() -> None:
    model = build("mlp", (1, 8, 8), 10, {"hidden": [4]})
    attack, made = cpl(optimiser=Adam(0.1), iterations=1), []
    for bounds in ([0.005, 0.005], [0.005, 10.0]):
        client = Client(defences=(Clip(torch.tensor(bounds)), Quantise(6)))
        seen, knowledge = seen_by(client, model, batch=digits(2))
        made.append(aware(attack, knowledge).run(model, seen, knowledge, [0, 1], QUICK))
    assert_close(made[0].inputs[0], made[1].inputs[0])
    assert_close(made[0].mismatch[0], made[1].mismatch[0])


def test_noise_of_level_zero_has_its_unit_from_the_threshold_whatever_runs_beside_it() -> None:
    still, loud = (replace(PLAIN, sigma=torch.tensor([level])) for level in (0.0, 0.1))
    alone, beside = mismatch_beside(still, loud)
    assert torch.equal(alone, beside)
    made = aware(cpl(), still)
    assert (made.objective, made.stop) == (InNoiseUnits(slack=1e-4), replace(cpl().stop, threshold=1.0))


def test_bound_and_noise_are_read_in_the_unit_of_what_is_compared() -> None:
    local = LocalTraining(epochs=3, rate=0.2)
    made = aware(cpl(), replace(PLAIN, local=local, sigma=ONES))
    assert made.objective == InNoiseUnits(slack=1e-4)
    stepped = aware(cpl(), replace(PLAIN, local=local, sigma=ONES), simulate=True)
    assert stepped.objective == InNoiseUnits(Scaled(gain=PerGradient()), 1e-4)
    line = aware(replace(cpl(), simulate=OnTheLine(OneGradient())), replace(PLAIN, local=local, sigma=ONES))
    assert line.objective == InNoiseUnits(slack=1e-4)
    one = take(replace(PLAIN, local=local, bound=ONES, sigma=ONES), 0)
    nothing = Simulated({"w": torch.zeros(4)}, torch.zeros(1), torch.zeros(1))
    views = [View({}, nothing, {"w": torch.ones(4)}, None, one, None, shares) for shares in Shares]  # type: ignore[arg-type]
    assert [float(bound_of(view)) for view in views] == pytest.approx([1 / 0.6, 1.0])


@pytest.mark.parametrize("simulate", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("sizes", [[3, 3], [3, 1]], ids=["equal", "unequal"])
def test_noise_explains_in_the_unit_that_matching_turns_weights_into(
    momentum: float, sizes: list[int], simulate: bool
) -> None:
    """The mismatch of pure noise is that of the noise in a mean gradient, trial by trial, whichever way it is compared."""
    local = LocalTraining(epochs=4, batch_size=1, rate=1e-3, momentum=momentum)
    data = load("digits")
    batch = make_batch(
        data.pictures("test", range(6)).unflatten(0, (2, 3)), data.labels("test", range(6)).reshape(2, 3), classes=10
    )
    present = torch.arange(3) < torch.tensor(sizes)[:, None]
    batch = replace(batch, mask=present)
    client = Client(local, defences=(GaussianNoise(1e-2),))
    seen, knowledge = seen_by(client, dtype=torch.float64, batch=batch)
    knowledge = replace(knowledge, labels=batch.labels, present=present)
    assert knowledge.sigma is not None
    attack = aware(cpl(), knowledge, simulate=simulate)
    problem, _ = attack.prepare(network(), seen, knowledge, [0, 1], Execution(dtype="float64", form="native"))
    facts = problem.facts
    match = attack.objective
    assert isinstance(match, InNoiseUnits)
    zero = {name: torch.zeros_like(value[0]) for name, value in seen.rounds[0].sent.items()}
    number = sum(value.numel() for value in zero.values())
    for trial in range(2):
        one = take(facts, trial)
        nothing = Simulated(zero, torch.zeros(1), torch.zeros(1))
        clock, shares = Clock(torch.tensor(0), one.key), one.observation.shares
        view = View({}, nothing, zero, one.observation.rounds[0], one.knowledge, clock, shares)
        explained = match.explained(view)
        length = local.length(sizes)[trial]
        left = max(1 - 3 * 64 / number, 0.5)
        assert float(explained) == pytest.approx(float(number * left * (1e-2 / length) ** 2), rel=1e-6)


@pytest.mark.slow
def test_who_is_told_of_noise_walks_the_same_way_until_it_is_explained() -> None:
    sigma = 1e-4
    seen, knowledge = seen_by(Client(defences=(GaussianNoise(sigma),)))
    attack = cpl(iterations=1, threshold=0.0)
    known = aware(attack, knowledge)
    known = replace(known, stop=attack.stop)  # the same number of iterations
    made = known.run(network(), seen, knowledge, SEEDS, QUICK)
    blind = attack.run(network(), seen, unaware(knowledge), SEEDS, QUICK)
    assert torch.equal(made.inputs, blind.inputs)
    explained = (blind.mismatch / made.mismatch).double()
    assert_close(explained, explained[:1].expand(TRIALS), rtol=1e-5, atol=0.0)
    number = sum(value[0].numel() for value in seen.rounds[0].sent.values())
    assert float(explained[0]) == pytest.approx(max((number - 64) * sigma**2, 1e-9), rel=1e-4)


def test_who_never_stops_does_not_stop_where_noise_explains_the_rest() -> None:
    known = replace(PLAIN, sigma=1e-3 * ONES)
    assert aware(cpl(threshold=0.0), known).stop.threshold == 0.0
    assert aware(cpl(threshold=1e-4), known).stop.threshold == 1.0


def test_an_objective_of_ones_own_must_use_the_facts_itself() -> None:
    own = replace(cpl(), objective=lambda view: view.simulated.output.sum())
    assert aware(own, PLAIN) is own
    with pytest.raises(InputError, match="objective"):
        aware(own, replace(PLAIN, bound=ONES))


def test_signs_of_some_trials_are_refused() -> None:
    with pytest.raises(InputError, match="some trials only"):
        aware(cpl(), replace(PLAIN, bits=torch.tensor([1, 4])))


# -- minimal at the truth

# name: (defences, the largest mismatch at the truth)
AT_TRUTH: dict[str, tuple[tuple[Defence, ...], float]] = {
    "sparsify": ((Sparsify(0.9),), 1e-12),
    "random mask": ((RandomMask(0.2),), 1e-12),
    "compression, first round": ((DeepCompression(0.9),), 1e-12),
    "clip": ((Clip(0.1),), 1e-12),
    "sign": ((Sign(),), 0.0),
    "1 bit": ((Quantise(1),), 0.0),
    "4 bits": ((Quantise(4),), 1e-12),
    "4 bits, nearest": ((Quantise(4, stochastic=False),), 1e-12),
    "sparsify, then signs": ((Sparsify(0.5), Sign()), 0.0),
    "clip, then sparsify": ((Clip(0.1), Sparsify(0.5)), 1e-12),
    "sparsify, then clip": ((Sparsify(0.5), Clip(0.1)), 1e-12),
    "clip, then 6 bits": ((Clip(0.1), Quantise(6)), 1e-12),
    "sparsify, then 6 bits": ((Sparsify(0.5), Quantise(6)), 1e-12),
    "noise": ((GaussianNoise(1e-2),), 1.1),
    "noise, then mask": ((GaussianNoise(1e-2), RandomMask(0.5)), 1.1),
    "noise by tensor": ((GaussianNoise(0.1, each=True),), 1.1),
    "noise by tensor, then mask": ((GaussianNoise(0.1, each=True), RandomMask(0.5)), 1.2),  # levels are estimates
}


def mismatch_of(attack: Matching, seen: Observation, knowledge: Knowledge, guess: Tensor) -> tuple[Tensor, Tensor]:
    """Return mismatch and gradient of every trial at a guess, in float64, the labels known."""
    model = to(network(), dtype=torch.float64)
    knowledge = replace(to(knowledge, dtype=torch.float64), labels=digits().labels)
    facts = Facts(seen, knowledge, Components(attack.simulate, attack.objective, attack.priors), random.key(SEEDS))
    rows = [evaluate_one(model, {GUESS: guess[i]}, take(facts, i), torch.tensor(0)) for i in range(len(guess))]
    return torch.stack([row[2] for row in rows]), torch.stack([row[0][GUESS] for row in rows])


@pytest.mark.parametrize("name", sorted(AT_TRUTH))
def test_the_truth_explains_what_was_seen_and_another_picture_does_not(name: str) -> None:
    defences, most = AT_TRUTH[name]
    seen, knowledge = seen_by(Client(defences=defences), dtype=torch.float64)
    attack, truth = aware(cpl(), knowledge), digits().inputs.double()
    pulled, _ = mismatch_of(attack, seen, knowledge, truth)
    attack = replace(attack, objective=without_pull(attack.objective))
    there, slope = mismatch_of(attack, seen, knowledge, truth)
    elsewhere, _ = mismatch_of(attack, seen, knowledge, 1 - truth)
    assert bool((there <= most).all())
    assert bool((there <= pulled).all())
    assert bool((elsewhere > there).all())
    if most == 0.0:
        assert not bool(slope.any())


@pytest.mark.parametrize("local", [None, LocalTraining(1, 1, rate=0.1)], ids=["gradient", "weights"])
@pytest.mark.parametrize("defences", [(), (RandomMask(0.5),)], ids=["whole", "masked"])
@pytest.mark.parametrize("distance", [cosine, angle])
def test_directions_of_tensors_clipped_one_by_one_are_the_truths(
    distance: Any, defences: tuple[Defence, ...], local: LocalTraining | None
) -> None:
    client = Client(defences=(Clip(0.01, each=True), *defences), local=local)
    seen, knowledge = seen_by(client, dtype=torch.float64)
    attack, truth = replace(ig(), objective=Match(distance)), digits().inputs.double()
    blind, _ = mismatch_of(attack, seen, unaware(knowledge), truth)
    knowing, _ = mismatch_of(aware(attack, knowledge), seen, knowledge, truth)
    elsewhere, _ = mismatch_of(aware(attack, knowledge), seen, knowledge, 1 - truth)
    assert bool((blind > 0.05).all())
    assert bool((knowing < 1e-12).all())
    assert bool((elsewhere > 0.05).all())


@pytest.mark.parametrize(
    "name", ["sparsify", "clip", "sign", "4 bits", "noise, then mask", "noise by tensor, then mask"]
)
def test_gradients_agree_with_finite_differences_through_the_network(name: str) -> None:
    seen, knowledge = seen_by(Client(defences=AT_TRUTH[name][0]), dtype=torch.float64)
    attack, guess = aware(cpl(), knowledge), random.uniform(random.key(SEEDS), (1, 1, 8, 8), torch.float64)
    way = random.normal(random.key([9, 8, 7, 6]), (1, 1, 8, 8), torch.float64)
    if isinstance(attack.objective, InNoiseUnits):  # which changes the report alone
        attack = replace(attack, objective=attack.objective.inner)
    _, slope = mismatch_of(attack, seen, knowledge, guess)
    ahead, back = (mismatch_of(attack, seen, knowledge, guess + h * way)[0] for h in (1e-5, -1e-5))
    assert_close((slope * way).flatten(1).sum(1), (ahead - back) / 2e-5, rtol=1e-4, atol=1e-9)


# -- better on real digits


# name: (defence, how much of the unaware attacker's error the aware one may keep)
STRONGER: dict[str, tuple[Defence, float]] = {
    "half sent": (Sparsify(0.5), 0.5),
    "a tenth sent": (Sparsify(0.9), 0.6),
    "a random tenth sent": (RandomMask(0.1), 0.2),
    "clipped": (Clip(1.0), 0.1),
    "signs": (Sign(), 0.5),
    "4 bits": (Quantise(4), 0.7),
    "8 bits": (Quantise(8), 1.0),
    "noise of 1e-2": (GaussianNoise(1e-2), 1.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STRONGER)
def test_who_knows_the_defence_sees_more(name: str) -> None:
    defence, share = STRONGER[name]
    seen, knowledge = seen_by(Client(defences=(defence,)))
    attack = cpl(iterations=3)
    blind, _ = error(attack, seen, unaware(knowledge))
    knowing, made = error(aware(attack, knowledge), seen, knowledge)
    assert knowing <= share * blind
    assert torch.equal(made.labels, digits().labels)


@pytest.mark.slow
@pytest.mark.parametrize("defence", [Sparsify(0.5), Quantise(2), Quantise(4)], ids=["half sent", "2 bits", "4 bits"])
def test_who_knows_is_not_behind_on_a_dense_network(defence: Defence) -> None:
    """Dark pixels leave zeros in its gradients, which say as much as what was sent: ignoring them lost to not knowing."""
    model = build("mlp", (1, 8, 8), 10, {"hidden": [32]})
    private, client = digits(), Client(defences=(defence,))
    seen = client.observe(model, draw_parameters(model, Torch(), random.key(SEEDS)), private, SEEDS)
    bare = attacker_knowledge(model, client, private)
    knowledge = knowledge_of_defences(bare, client, seen)
    attack, errors = cpl(iterations=30), []
    for how, known in ((attack, bare), (aware(attack, knowledge), knowledge)):
        made = how.run(model, seen, known, SEEDS, Execution(form="native"))
        errors.append(float((made.inputs.clamp(0, 1) - private.inputs).square().mean()))
    assert errors[1] <= 1.3 * errors[0] + 1e-3


@pytest.mark.slow
def test_a_known_mask_lets_the_unknown_be_found_and_says_so() -> None:
    seen, knowledge = seen_by(Client(defences=(Sparsify(0.5),)))
    squared, made = error(aware(cpl(iterations=4), knowledge), seen, knowledge)
    assert squared < 1e-3
    assert bool((made.outcome == Outcome.CONVERGED).all())


# -- several rounds


def test_matching_rounds_is_matching_their_mean_up_to_a_constant() -> None:
    seen, knowledge = seen_by(Client(defences=(GaussianNoise(1e-2),), rounds=5), dtype=torch.float64)
    merged, quieter = merge_rounds(seen, knowledge)
    assert len(merged.rounds) == 1
    assert_close(quieter.sigma, knowledge.sigma / 5**0.5)
    guesses = [random.uniform(random.key([s, s + 1, s + 2, s + 3]), (1, 1, 8, 8), torch.float64) for s in (0, 50)]
    apart = [mismatch_of(cpl(), seen, knowledge, guess) for guess in guesses]
    joined = [mismatch_of(cpl(), merged, quieter, guess) for guess in guesses]
    assert_close(apart[0][0] - joined[0][0], apart[1][0] - joined[1][0], rtol=1e-9, atol=1e-12)
    for one, other in zip(apart, joined, strict=True):
        assert_close(one[1], other[1], rtol=1e-7, atol=1e-12)


@pytest.mark.slow
def test_more_rounds_of_fresh_noise_give_a_better_picture() -> None:
    errors = []
    for rounds in (1, 8):
        seen, knowledge = merge_rounds(*seen_by(Client(defences=(GaussianNoise(3e-3),), rounds=rounds)))
        errors.append(error(aware(cpl(iterations=4), knowledge), seen, knowledge)[0])
    assert errors[1] < 0.5 * errors[0]


def test_rounds_that_say_more_apart_stay_apart() -> None:
    moved = seen_by(Client(rounds=2, server_rate=0.1))
    masked = seen_by(Client(defences=(RandomMask(0.5),), rounds=2))
    single = seen_by(Client(defences=(GaussianNoise(0.1),)))
    for seen, knowledge in (moved, masked, single):
        same, told_ = merge_rounds(seen, knowledge)
        assert same is seen
        assert told_ is knowledge


def test_each_round_is_compared_on_what_it_sent() -> None:
    seen, knowledge = seen_by(Client(defences=(RandomMask(0.2),), rounds=3), dtype=torch.float64)
    there, _ = mismatch_of(aware(cpl(), knowledge), seen, knowledge, digits().inputs.double())
    assert bool((there < 1e-12).all())


# -- local steps


def test_known_local_steps_are_simulated_on_request() -> None:
    told_ = replace(PLAIN, local=LocalTraining(epochs=2, rate=0.1))
    assert isinstance(aware(cpl(), told_).simulate, OneGradient)
    assert aware(cpl(), told_, simulate=True).simulate == LocalSteps()
    assert aware(replace(cpl(), simulate=ThroughMap()), told_, simulate=True).simulate == ThroughMap(inner=LocalSteps())
    line = replace(cpl(), simulate=OnTheLine(OneGradient()))
    assert aware(line, told_, simulate=True) is line
    with pytest.raises(InputError, match="no OneGradient"):
        aware(replace(cpl(), simulate=lambda *_: None), told_, simulate=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("distance", [squared_l2, l2, cosine])
def test_one_simulated_step_is_one_gradient_in_the_same_unit(distance: Any) -> None:
    seen, knowledge = seen_by(Client(local=LocalTraining(rate=0.05)), dtype=torch.float64)
    plain = cpl(objective=Match(distance))
    guess = random.uniform(random.key(SEEDS), (1, 1, 8, 8), torch.float64)
    stepped = mismatch_of(aware(plain, knowledge, simulate=True), seen, knowledge, guess)
    once = mismatch_of(plain, plain._comparable(seen, knowledge), knowledge, guess)
    assert_close(stepped[0], once[0])


def test_simulated_steps_are_exact_at_the_truth_where_one_gradient_is_not() -> None:
    seen, knowledge = seen_by(Client(local=LocalTraining(epochs=4, rate=0.1)), dtype=torch.float64)
    truth = digits().inputs.double()
    stepped, _ = mismatch_of(aware(cpl(), knowledge, simulate=True), seen, knowledge, truth)
    once, _ = mismatch_of(cpl(), cpl()._comparable(seen, knowledge), knowledge, truth)
    assert bool((stepped < 1e-20).all())
    assert bool((once > 1e-4).all())


# -- dropout


@pytest.mark.slow
def test_the_known_key_gives_the_clients_own_masks() -> None:
    model = network(dropout=0.3)
    seen, knowledge = seen_by(Client(), model)
    attack = cpl(iterations=3)
    own = random.fold(random.key(SEEDS), "client")
    blind, _ = error(attack, seen, knowledge, model)
    knowing, _ = error(replace(attack, simulate=KnownDropout(own)), seen, knowledge, model)
    assert knowing < 0.1 * blind


def test_averaged_masks_are_the_mean_of_single_ones_and_stand_still() -> None:
    model = network(dropout=0.3)
    seen, knowledge = seen_by(Client(), model)
    knowledge = replace(take(knowledge, 0), labels=digits().labels[0])
    unknowns: Tree = {GUESS: digits().inputs[0]}

    def update(simulate: Any, iteration: int) -> Tensor:
        clock = Clock(torch.tensor(iteration), random.key(0))
        made: Tensor = simulate(model, unknowns, take(seen.rounds[0], 0), knowledge, clock).update["head.weight"]
        return made

    assert torch.equal(update(AveragedDropout(3), 0), update(AveragedDropout(3), 7))
    assert not torch.equal(update(OneGradient(), 0), update(OneGradient(), 7))
    own = random.fold(random.key(0), "averaged_dropout")
    singles = [
        OneGradient()(
            model,
            unknowns,
            take(seen.rounds[0], 0),
            knowledge,
            Clock(torch.tensor(0), random.fold(own, draw)),
        ).update["head.weight"]
        for draw in range(3)
    ]
    assert_close(update(AveragedDropout(3), 5), torch.stack(singles).mean(0))
    with pytest.raises(InputError, match=r"AveragedDropout\.draws"):
        AveragedDropout(0)


# -- labels


@pytest.mark.parametrize("rule", ["cpl", "idlg"])
@pytest.mark.parametrize(
    "defence", [RandomMask(0.1), Sparsify(0.999), GaussianNoise(0.5)], ids=lambda d: type(d).__name__
)
def test_who_knows_of_a_mask_or_of_noise_reads_whole_rows(rule: str, defence: Defence) -> None:
    batch = digits(60)
    seen, knowledge = seen_by(Client(defences=(defence,)), network(12), batch=batch)
    keys = random.key(list(range(60)))
    right = [
        float((LABEL_RULES[rule](network(12), seen, k, keys) == batch.labels).double().mean())
        for k in (unaware(knowledge), knowledge)
    ]
    assert right[1] >= max(right[0], 0.95)


def test_rows_of_either_sign_are_not_added_up() -> None:
    model = build("lenet_cpl", (1, 8, 8), 10, {"width": 6, "activation": "tanh"})
    seen, knowledge = seen_by(Client(), model)
    noisy = replace(knowledge, sigma=0.1 * ONES)
    keys = random.key(SEEDS)
    for rule in ("cpl", "idlg"):
        read = [LABEL_RULES[rule](model, seen, k, keys) for k in (knowledge, noisy)]
        assert torch.equal(read[0], read[1])
        assert torch.equal(read[0], digits().labels)


# -- other optimisers


@pytest.mark.slow
def test_adam_gains_from_a_known_clip_too() -> None:
    seen, knowledge = seen_by(Client(defences=(Clip(0.1),)))
    attack = cpl(optimiser=Adam(0.1), iterations=30)
    blind, _ = error(attack, seen, unaware(knowledge))
    knowing, _ = error(aware(attack, knowledge), seen, knowledge)
    assert knowing < blind


# -- weights without the rate


def blind_to_the_rate() -> tuple[Observation, Knowledge]:
    seen, knowledge = seen_by(Client(LocalTraining(rate=0.1)))
    return seen, replace(knowledge, local=None, labels=digits().labels)


@pytest.mark.parametrize("attack", [cpl(), idlg(), dlg(), spn_aware()], ids=["cpl", "idlg", "dlg", "spn_aware"])
def test_lengths_are_not_compared_with_weights_whose_rate_is_not_told(attack: Matching) -> None:
    seen, knowledge = blind_to_the_rate()
    with pytest.raises(InputError, match=rf"^{attack.name} compares lengths.*\(ig, sme\)$") as caught:
        attack._comparable(seen, knowledge)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("attack", [ig(), sme(), ig_update(), cpl(objective=Match(angle))], ids=lambda a: a.name)
def test_directions_need_no_rate(attack: Matching) -> None:
    seen, knowledge = blind_to_the_rate()
    attack.prepare(network(), seen, knowledge, SEEDS, QUICK)
    assert attack._comparable(seen, knowledge) is seen


def test_a_scenario_that_does_not_tell_the_rate_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    scenario = scenario_of(
        {
            "data": "digits",
            "model": {"name": "lenet_cpl", "width": 6},
            "client": {"local": {"epochs": 1, "rate": 0.1}},
            "knowledge": {"local": False, "labels": True},
            "attack": {"name": "cpl", "iterations": 2},
            "baselines": [],
            "trials": 1,
            "precision": {"form": "native"},
        }
    )
    with pytest.raises(InputError, match="compares lengths"):
        run_scenario(scenario, tmp_path / "run", engine=serial)
    assert not (tmp_path / "run").exists()
