"""Every setting of the federation that CPL and Mixing vary can be said in a scenario, and does what it says."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from leakscope.attacks.attack import Matching
from leakscope.attacks.engine.forms import Evaluator
from leakscope.attacks.recipes import cpl
from leakscope.core.errors import InputError
from leakscope.core.tree import Tree, take
from leakscope.core.types import Knowledge, Observation, direction
from leakscope.metrics.recovery import recovery
from leakscope.play import Exposure
from leakscope.scenario import ScenarioError, scenario_of
from leakscope.scenario.cell import CellSettings, read_settings
from leakscope.scenario.scenario import scenario_from_text
from leakscope.store import Run
from leakscope.sweep import run_scenario
from leakscope.sweep.chunk import Chunk, expose_chunk
from leakscope.sweep.driver import ONE_HOT, ReportingWatcher, unfold
from leakscope.sweep.engines import serial
from leakscope.sweep.plan import make_plan

BASE: dict[str, Any] = {
    "data": {"name": "digits"},
    "model": {"name": "mlp", "hidden": [8], "activation": "sigmoid"},
    "attack": {"name": "matching", "labels": "joint", "iterations": 1},
    "trials": 2,
    "baselines": [],
    "precision": {"dtype": "float64"},
}
LENET = {"name": "lenet_cpl", "width": 3}


def chunks(**changed: Any) -> list[Chunk]:
    sweep = unfold(scenario_of({**BASE, **changed}))
    return list(make_plan(sweep, sweep.trials, measure=False).chunks)


def seen(**changed: Any) -> list[Exposure]:
    return [expose_chunk(chunk) for chunk in chunks(**changed)]


def settings_of(chunk: Chunk) -> CellSettings:
    return chunk.settings()


def update(observation: Observation) -> Tree:
    return direction(observation.rounds[0], observation.shares)


def plain_gradient(exposure: Exposure, trial: int, loss: Any) -> dict[str, Tensor]:
    """Return the gradient of a loss of torch's own, by plain autograd."""
    before = take(exposure.observation.rounds[0].before, torch.tensor([trial]))
    weights = {name: value[0].clone().requires_grad_() for name, value in before.items()}
    output, _ = exposure.model.apply(weights, {}, exposure.batch.inputs[trial], torch.tensor(0))
    found = torch.autograd.grad(loss(output, exposure.batch.labels[trial]), list(weights.values()))
    return dict(zip(weights, found, strict=True))


# -- losses


@pytest.mark.parametrize("samples", [1, 4])
def test_mse_takes_whole_labels_as_one_hot_rows(samples: int) -> None:
    (exposure,) = seen(client={"loss": "mse"}, data={"name": "digits", "samples": samples})
    assert exposure.knowledge.loss == "mse"
    assert exposure.batch.labels.dtype == torch.int64

    def theirs(output: Tensor, labels: Tensor) -> Tensor:
        return F.mse_loss(output, F.one_hot(labels, 10).to(output))

    for trial in range(2):
        for name, value in plain_gradient(exposure, trial, theirs).items():
            assert_close(update(exposure.observation)[name][trial], value, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
@pytest.mark.parametrize("simulated", ["mse", "cross_entropy"])
def test_the_attack_simulates_the_loss_it_was_told(loss: str, simulated: str) -> None:
    (chunk,) = chunks(client={"loss": loss}, knowledge={"labels": True}, attack={"name": "matching"})
    exposure = expose_chunk(chunk)
    batch, observation, knowledge = exposure.batch, exposure.observation, exposure.knowledge
    told = {"loss": simulated}
    known = Knowledge(knowledge.input_shape, knowledge.classes, knowledge.samples, labels=batch.labels, **told)  # type: ignore[arg-type]
    attack = settings_of(chunk).attack
    assert isinstance(attack, Matching)
    problem, _ = attack.prepare(exposure.model, observation, known, [t.seed for t in chunk.trials])
    evaluate = Evaluator(exposure.model, problem.unknowns, problem.facts, "native")
    at_truth = evaluate({"guess": batch.inputs.float()}, torch.zeros(2, dtype=torch.int64)).mismatch
    assert bool((at_truth < 1e-10).all()) is (loss == simulated)


def test_rules_that_read_cross_entropy_refuse_mse_and_say_what_to_do() -> None:
    (chunk,) = chunks(client={"loss": "mse"})
    exposure = expose_chunk(chunk)
    observation, knowledge = exposure.observation, exposure.knowledge
    with pytest.raises(InputError, match=r"'mse'.*'joint'"):
        cpl(iterations=1).run(exposure.model, observation, knowledge, [t.seed for t in chunk.trials])


@pytest.mark.parametrize(
    ("changed", "rule", "keys"),
    [
        ({"attack": "cpl"}, "cpl", "attack.labels: joint, .*knowledge.labels: true"),
        ({"attack": "ig", "data": {"name": "digits", "samples": 2}}, "by_residual", "or knowledge.labels: true"),
        ({"attack": "idlg"}, "idlg", "attack.labels: joint, .*knowledge.labels: true .*attack.labels: auto"),
        ({"attack": "idlg", "knowledge": {"labels": True}}, "idlg", "with attack.labels: auto"),
    ],
)
def test_a_scenario_whose_labels_cannot_be_read_is_refused_and_what_it_names_works(
    changed: dict[str, Any], rule: str, keys: str
) -> None:
    told = {**BASE, "client": {"loss": "mse"}, **changed}
    with pytest.raises(ScenarioError, match=f"attack.labels: .*'{rule}'.*{keys}$"):
        unfold(scenario_of(told))
    name = told["attack"]
    for mended in (
        {"attack": {"name": name, "labels": "joint", "iterations": 1}},
        {"attack": {"name": name, "labels": "auto", "iterations": 1}, "knowledge": {"labels": True}},
    ):
        (chunk,) = chunks(**{**told, **mended})
        exposure = expose_chunk(chunk)
        method, observation = chunk.settings().attack, exposure.observation
        made = method.run(exposure.model, observation, exposure.knowledge, chunk.seeds)
        assert made.inputs.isfinite().all()


def test_it_is_refused_at_the_line_of_the_attack_that_reads() -> None:
    text = (
        "data: digits\nmodel: mlp\nclient: {loss: mse}\nattacks:\n  - dlg\n  - {name: cpl, iterations: 1}\n"
        "  - {name: cpl,\n     labels: counts}\n"
    )
    with pytest.raises(ScenarioError) as caught:
        unfold(scenario_from_text(text, "s.yaml"))
    assert [(p.line, p.path) for p in caught.value.problems] == [
        (6, ("attacks", 1, "labels")),
        (8, ("attacks", 2, "labels")),
    ]


@pytest.mark.slow
def test_a_run_says_once_what_mse_makes_of_labels(tmp_path: Path) -> None:
    class Heard(ReportingWatcher):
        def __init__(self) -> None:
            self.lines: list[str] = []

        def message(self, line: str) -> None:
            self.lines.append(line)

    for loss, times in (("mse", 1), ("cross_entropy", 0)):
        heard = Heard()
        told = scenario_of(
            {**BASE, "client": {"loss": loss}, "grid": {"data.samples": [1, 2]}, "baselines": ["class_mean"]}
        )
        run_scenario(told, tmp_path / loss, engine=serial, measure=False, watcher=heard)
        assert [line for line in heard.lines if "one-hot" in line] == [ONE_HOT] * times


# -- the network


@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "leaky_relu", "relu"])
def test_activation(activation: str) -> None:
    (exposure,) = seen(model={**LENET, "activation": activation}, trials=1)
    assert activation.replace("_", "") in str(exposure.model.apply.module).lower()  # type: ignore[attr-defined]


@pytest.mark.parametrize("pooling", ["average", "max"])
def test_pooling_changes_the_update_and_not_the_number_of_parameters(pooling: str) -> None:
    plain, pooled = (update(each.observation) for each in seen(model=LENET, grid={"model.pooling": ["none", pooling]}))
    assert {n: v.shape for n, v in plain.items()} == {n: v.shape for n, v in pooled.items()}
    assert not torch.allclose(plain["conv1.weight"], pooled["conv1.weight"])


def test_dropout_draws_a_mask_for_every_trial_and_none_at_zero() -> None:
    without, half, again = (
        update(seen(model={**LENET, "dropout": share})[0].observation)["head.weight"] for share in (0.0, 0.5, 0.5)
    )
    assert torch.equal(half, again)
    unused = (half == 0).all(1)
    assert not bool((without == 0).all(1).any())
    assert 0.3 < float(unused.double().mean()) < 0.7
    assert not torch.equal(unused[0], unused[1])


# -- the protocol


def test_batches_of_1_to_32() -> None:
    found = seen(grid={"data.samples": [1, 2, 4, 8, 16, 32]})
    assert [each.batch.samples for each in found] == [1, 2, 4, 8, 16, 32]
    for each in found:
        assert each.knowledge.samples == each.batch.samples
        expected = plain_gradient(each, 1, F.cross_entropy)
        assert_close(update(each.observation)["head.weight"][1], expected["head.weight"], rtol=1e-5, atol=1e-7)


def test_local_iterations_1_to_10_are_one_path_attacked_after_each_step() -> None:
    """CPL, table 9: cell M sees the same client as cell M - 1, one step of plain gradient descent later."""
    rate = 0.1
    found = seen(
        client={"local": {"epochs": 1, "rate": rate}},
        data={"name": "digits", "samples": 2},
        knowledge={"defence": False},
        grid={"client.local.epochs": list(range(1, 11))},
    )
    assert [each.knowledge.local.epochs for each in found if each.knowledge.local] == list(range(1, 11))
    for before, after in itertools.pairwise(found):
        earlier, later, batch = before.observation, after.observation, after.batch
        assert torch.equal(earlier.rounds[0].before["head.weight"], later.rounds[0].before["head.weight"])
        weights = {n: v[0].clone().requires_grad_() for n, v in earlier.rounds[0].sent.items()}
        output, _ = after.model.apply(weights, {}, batch.inputs[0], torch.tensor(0))
        step = torch.autograd.grad(F.cross_entropy(output, batch.labels[0]), list(weights.values()))
        for (name, value), slope in zip(weights.items(), step, strict=True):
            assert_close(later.rounds[0].sent[name][0], value - rate * slope, rtol=1e-5, atol=1e-6)


# -- Mixing


@pytest.mark.parametrize("model", ["linear", {"name": "lenet_dlg", "width": 3}])
def test_the_settings_of_mixings_table_1_can_be_said(model: Any) -> None:
    """Dense layer and LeNet; batches of 1, 2, 4; three strategies; three pairs of iterations and rate."""
    strategies = {"data.mix": ["random", "equal", "random"], "client.loss": ["cross_entropy", "cross_entropy", "mse"]}
    lbfgs = {"attack.iterations": [1200, 1200, 550], "attack.optimiser.rate": [0.025, 0.05, 0.05]}
    cells = unfold(
        scenario_of(
            {
                **BASE,
                "model": model,
                "attack": {"name": "dlg", "threshold": 0, "optimiser": {"name": "lbfgs"}},
                "grid": {"data.samples": [1, 2, 4]},
                "zip": [strategies, lbfgs],
            }
        )
    ).cells
    assert len({cell.id for cell in cells}) == 27
    attacks = [read_settings(cell.settings).attack for cell in cells]
    told = {(attack.stop.iterations, attack.optimiser.rate) for attack in attacks if isinstance(attack, Matching)}  # type: ignore[attr-defined]
    assert told == {(1200, 0.025), (1200, 0.05), (550, 0.05)}


@pytest.mark.slow
def test_equal_labels_and_mse_hide_what_random_labels_give_away(tmp_path: Path) -> None:
    """Mixing, table 1, last column of each row, in small: batches of 4 digits on one dense layer, labels known."""
    attack = {"name": "cpl", "start": "normal", "iterations": 60, "threshold": 0}
    told = {
        **BASE,
        "data": {"name": "digits", "samples": 4},
        "model": "linear",
        "attack": {**attack, "optimiser": {"name": "lbfgs", "rate": 0.05}},
        "knowledge": {"labels": True},
        "trials": 8,
        "precision": {"dtype": "float64", "form": "native"},
        "zip": {"data.mix": ["random", "equal", "random"], "client.loss": ["cross_entropy", "cross_entropy", "mse"]},
    }
    run_scenario(scenario_of(told), tmp_path / "run", engine=serial, measure=False)
    run = Run.open(tmp_path / "run")
    rates = []
    for cell in run.cells():
        mse = torch.tensor([[sample.mse for sample in record.samples] for record in run.records(cell=cell.id)])
        rates.append(recovery(mse, torch.ones_like(mse, dtype=torch.bool)).samples.value)
    separate, equal, squared = rates
    assert separate > 0.4
    assert equal < separate - 0.3
    assert squared < separate - 0.3
