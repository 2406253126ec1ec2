"""What a scenario's attacker does with being told of the defence: rounds averaged, clips of each tensor, dropout masks."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from leakscope.attacks.attack import Matching
from leakscope.attacks.aware import AveragedDropout, KnownDropout
from leakscope.attacks.distances import angle_per_tensor, squared_l2
from leakscope.attacks.objectives import distance_of
from leakscope.attacks.simulate import OneGradient
from leakscope.core.errors import InputError
from leakscope.scenario import scenario_of
from leakscope.sweep.chunk import Chunk, expose_chunk, informed, play_chunk
from leakscope.sweep.driver import remarks, unfold
from leakscope.sweep.plan import group_trials
from leakscope.sweep.trials import Trial

BASE: dict[str, Any] = {
    "data": "digits",
    "model": {"name": "lenet_cpl", "width": 6},
    "weights": {"name": "uniform", "a": 0.5},
    "attack": {"name": "cpl", "iterations": 12},
    "trials": 3,
}


def chunk_of(**changed: Any) -> Chunk:
    scenario = scenario_of({"name": "told", "knowledge": {"defence": False}, **BASE, **changed})
    (cell,) = scenario.cells()
    trials = tuple(Trial(id=str(i), cell=0, number=i, seed=i, items=(i,)) for i in range(3))
    return Chunk(name="told", cells={0: cell}, trials=trials, form="native")


def recovered(chunk: Chunk) -> list[bool]:
    torch.set_num_threads(1)
    return [record.samples[0].recovered for record in play_chunk(chunk).landing.records]


def test_rounds_under_fresh_noise_become_one_with_their_mean() -> None:
    noisy = {"client": {"rounds": 16}, "defences": [{"name": "gaussian_noise", "sigma": 0.08}]}
    apart = expose_chunk(chunk_of(**noisy)).observation
    exposure = expose_chunk(chunk_of(**noisy, knowledge={"defence": True}))
    merged, knowledge = exposure.observation, exposure.known(informed=True)
    assert len(apart.rounds) == 16
    assert len(merged.rounds) == 1
    for name, value in merged.rounds[0].sent.items():
        torch.testing.assert_close(value, torch.stack([r.sent[name] for r in apart.rounds]).mean(0))
    assert knowledge.sigma is not None
    torch.testing.assert_close(knowledge.sigma, torch.full((3,), 0.02))


def test_rounds_at_moved_weights_stay_apart() -> None:
    moving = {"client": {"rounds": 3, "server_rate": 0.1}, "defences": [{"name": "gaussian_noise", "sigma": 0.01}]}
    assert len(expose_chunk(chunk_of(**moving, knowledge={"defence": True})).observation.rounds) == 3


@pytest.mark.slow
def test_a_clip_of_every_tensor_is_seen_through_by_the_one_who_knows() -> None:
    clip = {"defences": [{"name": "clip", "bound": 0.1, "each": True}]}
    chunk = chunk_of(**clip, knowledge={"defence": True})
    knowledge = expose_chunk(chunk).known(informed=True)
    made = informed(chunk.settings().attack, chunk.settings(), knowledge, [0, 1, 2])
    assert isinstance(made, Matching)
    assert distance_of(made.objective) is angle_per_tensor
    assert sum(recovered(chunk)) > sum(recovered(chunk_of(**clip)))


def test_one_bit_is_told_as_the_two_whose_levels_it_has() -> None:
    coarse = chunk_of(defences=[{"name": "quantise", "bits": 1}], knowledge={"defence": True})
    knowledge = expose_chunk(coarse).known(informed=True)
    assert knowledge.bits is not None
    assert knowledge.bits.tolist() == [2, 2, 2]
    made = informed(coarse.settings().attack, coarse.settings(), knowledge, [0, 1, 2])
    assert isinstance(made, Matching)
    assert distance_of(made.objective) is squared_l2


def dropping(**words: bool) -> Chunk:
    return chunk_of(model={"name": "lenet_cpl", "width": 6, "dropout": 0.3}, knowledge=words)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ({"defence": False}, OneGradient),
        ({"defence": True}, AveragedDropout),
        ({"defence": True, "dropout": True}, KnownDropout),
    ],
)
def test_dropout_masks_are_averaged_or_known(words: dict[str, bool], kind: type) -> None:
    chunk = dropping(**words)
    knowledge = expose_chunk(chunk).known(informed=True)
    made = informed(chunk.settings().attack, chunk.settings(), knowledge, [0, 1, 2])
    assert isinstance(made, Matching)
    assert type(made.simulate) is kind


@pytest.mark.slow
def test_with_the_masks_known_the_attack_is_that_without_dropout() -> None:
    assert recovered(dropping(defence=True, dropout=True)) == [True, True, True]
    assert sum(recovered(dropping(defence=False))) < 3


def test_a_defence_meets_both_attackers_unless_the_file_says_which() -> None:
    noisy = {"name": "told", **BASE, "defences": ["sign"]}
    assert [cell.axes for cell in scenario_of(noisy).cells()] == [
        {"knowledge.defence": False},
        {"knowledge.defence": True},
    ]
    assert scenario_of({**noisy, "knowledge": {"defence": False}}).cell_count == 1
    assert scenario_of({**noisy, "grid": {"knowledge.defence": [True]}}).cell_count == 1
    assert scenario_of({"name": "told", **BASE}).cell_count == 1
    varied = {"name": "told", **BASE, "grid": {"defences": [[], ["sign"]]}}
    assert scenario_of(varied).cell_count == 4


def test_a_private_head_meets_both_attackers_too() -> None:
    plain = {"data": "digits", "model": {"name": "mlp", "hidden": [16]}, "attack": {"name": "cpl"}}
    polarised = scenario_of({**plain, "client": {"on_model": {"alpha2": 0.1}}})
    assert [cell.axes for cell in polarised.cells()] == [{"knowledge.defence": False}, {"knowledge.defence": True}]
    varied = {"client.on_model": [{"alpha2": 0.1}, {"alpha2": 0.2}]}
    assert scenario_of({**plain, "client": {}, "grid": varied}).cell_count == 4


@pytest.mark.parametrize("name", ["spn_aware", "spn_head", "spn_pull"])
def test_an_attacker_made_for_private_heads_is_run_once(name: str) -> None:
    plain = {"data": "digits", "model": {"name": "mlp", "hidden": [16]}, "attack": {"name": name}}
    assert scenario_of({**plain, "client": {"on_model": {"alpha2": 0.1}}}).cell_count == 1
    noisy = {"client": {"on_model": {"alpha2": 0.1}}, "defences": [{"name": "gaussian_noise", "sigma": 0.1}]}
    assert scenario_of({**plain, **noisy}).cell_count == 2


@pytest.mark.parametrize("guard", [{"on_model": {}}, {"on_data": {"policy": "3"}}, {"on_model": {"alpha2": 0.2}}])
def test_a_client_with_a_defence_meets_both_attackers_wherever_it_stands(guard: dict[str, Any]) -> None:
    plain = {"data": "digits", "model": {"name": "mlp", "hidden": [16]}, "attack": {"name": "cpl"}}
    alone = scenario_of({**plain, "client": guard})
    assert [cell.axes for cell in alone.cells()] == [{"knowledge.defence": False}, {"knowledge.defence": True}]
    assert scenario_of({**plain, "grid": {"client": [guard, {}]}}).cell_count == 4
    zipped = {"client": [{}, guard], "model.hidden": [[8], [16]]}
    assert scenario_of({**plain, "zip": zipped}).cell_count == 4
    assert scenario_of({**plain, "grid": {"client": [{}, {"on_model": None}]}}).cell_count == 2
    assert scenario_of({**plain, "client": dict.fromkeys(guard)}).cell_count == 1


def test_masks_alone_are_refused() -> None:
    with pytest.raises(InputError, match="set defence: true"):
        scenario_of({"name": "told", **BASE, "knowledge": {"dropout": True}})


def test_trials_keep_their_ids_where_nothing_new_is_said() -> None:
    before = scenario_of({"name": "told", **BASE}).cells()
    after = scenario_of({"name": "told", **BASE, "knowledge": {"dropout": False}}).cells()
    assert [cell.id for cell in before] == [cell.id for cell in after]


PLAIN: dict[str, Any] = {"data": {"name": "digits", "samples": 4}, "model": {"name": "mlp", "hidden": [8]}}
LOCAL = {"client": {"local": {"epochs": 1, "batch_size": 2, "rate": 0.1}}}  # two steps
DROPPING = {"model": {"name": "lenet_cpl", "dropout": 0.3}}


def told_in(**scenario: Any) -> list[tuple[str, bool]]:
    """Return the attack of every cell and whether it was told of the defence."""
    cells: list[Any] = [cell.settings for cell in scenario_of({**PLAIN, **scenario}).cells()]
    return [(settings["attack"]["name"], settings["knowledge"]["defence"]) for settings in cells]


@pytest.mark.parametrize(
    "settings",
    [
        LOCAL,
        {"client": {"local": {"epochs": 2}}},
        {"grid": {"client.local.epochs": [3]}},
        {"grid": {"client.local": [{"epochs": 3}]}},
        {"client": {"local": {"batch_size": 1}}, "grid": {"data.samples": [2]}},
        DROPPING,
        {"model": "lenet_cpl", "grid": {"model.dropout": [0.1]}},
        {"grid": {"model": [{"name": "lenet_cpl", "dropout": 0.1}]}},
    ],
)
def test_local_steps_and_dropout_meet_both_attackers(settings: dict[str, Any]) -> None:
    assert told_in(attack="cpl", **settings) == [("cpl", False), ("cpl", True)]
    assert told_in(attack="cpl", knowledge={"defence": False}, **settings) == [("cpl", False)]
    assert told_in(attack="cpl", knowledge={"defence": True}, **settings) == [("cpl", True)]


@pytest.mark.parametrize(
    "settings",
    [
        {"client": {"local": {"rate": 0.1}}},  # one step: a gradient
        {"client": {"local": {"batch_size": 4}}},
        {**LOCAL, "knowledge": {"local": False}},  # steps that the attacker is not told cannot be simulated
        {"model": {"name": "lenet_cpl", "dropout": 0.0}},
    ],
)
def test_there_is_one_attacker_where_knowing_changes_nothing(settings: dict[str, Any]) -> None:
    assert told_in(attack="cpl", **settings) == [("cpl", False)]


@pytest.mark.parametrize("name", ["sme", "dlfa", "analytic"])
def test_attacks_with_steps_of_their_own_are_run_once(name: str) -> None:
    assert told_in(attack=name, **LOCAL) == [(name, False)]
    assert told_in(attacks=[name, "ig"], **LOCAL) == [(name, False), ("ig", False), ("ig", True)]


def test_points_of_one_step_and_without_a_defence_are_run_once() -> None:
    assert told_in(attack="cpl", grid={"client.local.epochs": [1, 2]}).count(("cpl", True)) == 1
    assert told_in(attack="cpl", grid={"defences": [[], ["sign"]]}).count(("cpl", True)) == 1


@pytest.mark.parametrize("settings", [LOCAL, DROPPING])
def test_the_one_who_does_not_know_has_the_same_cell_said_or_not(settings: dict[str, Any]) -> None:
    plain = {**PLAIN, **settings, "attack": "cpl"}
    said = {cell.id for cell in scenario_of({**plain, "knowledge": {"defence": False}}).cells()}
    both = {cell.id for cell in scenario_of({**plain, "grid": {"knowledge.defence": [False, True]}}).cells()}
    assert {cell.id for cell in scenario_of(plain).cells()} == both
    assert len(both) == 2
    assert said < both


@pytest.mark.parametrize("name", ["clip", "gaussian_noise"])
def test_who_is_told_of_every_tensor_is_attacked_apart_from_who_is_told_of_the_whole(name: str) -> None:
    strength = {"bound": 0.1} if name == "clip" else {"sigma": 0.1}
    varied = {**PLAIN, "attack": "cpl", "defences": [{"name": name, **strength}], "baselines": [], "trials": 1}
    sweep = unfold(scenario_of({**varied, "grid": {"defences.0.each": [False, True]}}))
    groups = group_trials(sweep, sweep.trials)
    told_apart = [{sweep.cells[trial.cell].settings["defences"][0]["each"] for trial in g.trials} for g in groups]  # type: ignore[index]
    assert sorted(map(len, told_apart)) == [1, 1, 2]  # two who know, each by itself, and those who do not, together


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"client": {"local": {"epochs": 5, "batch_size": 2}}}, "10 local steps: .* 10 times"),
        (DROPPING, "8 dropout masks: .* 8 times"),
        ({**LOCAL, **DROPPING}, "2 local steps .*8 dropout masks: .* 16 times"),
        ({**DROPPING, "knowledge": {"defence": True, "dropout": True}}, None),
        ({**LOCAL, "knowledge": {"defence": False}}, None),
        ({"defences": ["sign"]}, None),
    ],
)
def test_a_run_says_what_simulating_costs_and_how_to_leave_it_out(settings: dict[str, Any], said: str | None) -> None:
    lines = remarks(unfold(scenario_of({**PLAIN, "attack": "cpl", **settings})))
    assert len(lines) == (said is not None)
    for line in lines:
        assert re.search(f"{said}.*; knowledge: {{defence: false}}", line)
