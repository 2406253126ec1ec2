"""Captures tell numbers that no hash covers and trainings that differ: each is checked, used where it is true, or named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.auditing.test_audit_target import Old, Through
from torch import Tensor, nn
from torch.testing import assert_close

from leakscope.attacks.batch_statistics import read_batch_statistics
from leakscope.attacks.exact.all_rounds import AllRounds
from leakscope.attacks.recipes import analytic
from leakscope.auditing import suite
from leakscope.auditing.capture_audit import audit_captures
from leakscope.auditing.capture_reader import BEST_ROUND, observe_captures
from leakscope.auditing.capture_rounds import best_rounds
from leakscope.auditing.suite import TARGETS
from leakscope.auditing.target import Target
from leakscope.core.errors import InputError
from leakscope.core.types import Knowledge, LocalTraining, Shares
from leakscope.data import load
from leakscope.models import from_module
from leakscope.store.captures import Capture, read_capture, write_capture
from leakscope.store.recorder import capture

BASELINES = {"baseline class_mean", "baseline nearest_public"}  # captures have no public examples


@pytest.fixture(autouse=True)
def few_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "PUBLISHED", dict.fromkeys(suite.PUBLISHED, 1) | {"cpl": 2, "ig": 2, "sme": 2})
    monkeypatch.setattr("leakscope.auditing.capture_audit.fastest_threads", lambda *_: 1)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Sigmoid(), nn.Linear(5, 3))


def held(partition: int, examples: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(partition)
    return torch.rand(examples, 6, generator=generator), torch.arange(examples) % 3


def sent_by(model: nn.Module, x: Tensor, y: Tensor, rate: float) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    slopes = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(model.parameters()))
    names = [name for name, _ in model.named_parameters()]
    return before, before | {n: before[n] - rate * g for n, g in zip(names, slopes, strict=True)}


def write(directory: Path, client: int, *, model: nn.Module | None = None, rate: float = 0.1, **told: Any) -> None:
    examples = told.get("examples") or 1
    before, sent = sent_by(model or network(), *held(client, examples), rate)
    fields = {"partition": client, "examples": examples, "config": {"lr": rate}} | told
    write_capture(directory, Capture(round=1, client=str(client), before=before, sent=sent, **fields))


def edit(directory: Path, **changed: Any) -> None:
    """Change the JSON text of every capture, as anyone can."""
    for path in directory.glob("*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | changed))


def audited(directory: Path, **changed: Any) -> Any:
    settings = {"minutes": 0.01} | {
        name: changed.pop(name) for name in ("clients", "minutes", "attacks") if name in changed
    }
    return audit_captures(directory, Target(**({"model": network(), "input_shape": (6,)} | changed)), **settings)


# -- trainings that differ


def test_captures_of_another_rate_are_not_attacked_with_the_first_ones(tmp_path: Path) -> None:
    write(tmp_path, 0)
    write(tmp_path, 1)
    write(tmp_path, 2, rate=0.001)
    made = audited(tmp_path, truth=held)
    assert made.measures.asr.n == 2
    named = [item for item in made.untested if "1 of 3 captures" in item.what]
    assert "another learning rate" in named[0].why


@pytest.mark.parametrize("config", [{"lr": 0.1, "epochs": 2}, {"lr": "0.1", "batch-size": 1}])
def test_captures_of_other_epochs_or_batches_are_named_too(tmp_path: Path, config: dict[str, Any]) -> None:
    write(tmp_path, 0)
    write(tmp_path, 1, config=config)
    assert any("1 of 2 captures" in item.what for item in audited(tmp_path).untested)


@pytest.mark.parametrize("config", [{"lr": 0.1}, {"lr": 0.1, "epochs": 5}, {"lr": 0.1, "batch-size": 4}, {}])
def test_steps_that_are_not_stated_are_not_taken_to_be_one(tmp_path: Path, config: dict[str, Any]) -> None:
    write(tmp_path, 0, examples=8, config=config)
    made = audited(tmp_path)
    assert "local steps" in {item.what for item in made.untested}
    assert "sme" in {run.name for run in made.unscored} | {cut.name for cut in made.short}
    assert any("rate times steps" in note for note in made.notes)


def test_a_training_that_is_stated_whole_is_simulated(tmp_path: Path) -> None:
    write(tmp_path, 0, examples=8, config={"lr": 0.1, "epochs": 5, "batch-size": 4})
    made = audited(tmp_path, truth=lambda p: held(p, 8))
    assert made.exposure.client.local == LocalTraining(rate=0.1, epochs=5, batch_size=4)
    assert "local steps" not in {item.what for item in made.untested}


def test_the_commonest_kind_is_attacked_and_the_rest_makes_the_audit_unfinished(tmp_path: Path) -> None:
    write(tmp_path, 0, rate=0.001)
    for client in range(1, 6):
        write(tmp_path, client)
    made = audited(tmp_path, truth=held)
    assert made.measures.asr.n == 5
    assert "1 of 6 captures were left out" in made.unfinished


def test_a_training_that_the_target_tells_stands_above_what_captures_tell(tmp_path: Path) -> None:
    write(tmp_path, 0, config={"lr": "as fast as it goes"})
    write(tmp_path, 1, rate=0.001)
    made = audited(tmp_path, client=LocalTraining(rate=0.1))
    assert not any("captures" in item.what for item in made.untested)
    assert made.unscored[0].reconstruction.inputs.shape[0] == 2


def test_captures_that_share_different_things_are_not_mixed(tmp_path: Path) -> None:
    write(tmp_path, 0, examples=3)
    write(tmp_path, 1, examples=2, shares="gradient")
    made = audited(tmp_path)
    assert made.grade == "unscored"
    assert any("those of 2 examples" in note for note in made.notes)


# -- what no hash covers


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"lr": "fast"}, "'lr' .*a number"),
        ({"lr": 10**400}, "'lr' .*a number"),
        ({"lr": -1}, "'lr' .*a number"),
        ({"lr": True}, "'lr' .*a number"),
        ({"lr": "nan"}, "'lr' .*a number"),
        ({"lr": 0.1, "epochs": "many"}, "'epochs' .*whole number"),
        ({"lr": 0.1, "epochs": "1.5"}, "'epochs' .*whole number"),
        ({"lr": 0.1, "local-epochs": 10**9}, r"'local-epochs' .*1\.\.1000"),
        ({"lr": 0.1, "batch-size": 0}, r"'batch-size' .*1\.\."),
        ({"lr": 0.1, "batch-size": 1e300}, r"'batch-size' .*1\.\."),
    ],
)
def test_numbers_in_the_configuration_are_checked(tmp_path: Path, config: dict[str, Any], said: str) -> None:
    write(tmp_path, 0)
    edit(tmp_path, config=config)
    with pytest.raises(InputError, match=said) as refused:
        audited(tmp_path)
    assert len(str(refused.value)) < 200


def test_more_examples_than_can_be_searched_over_are_untested(tmp_path: Path) -> None:
    write(tmp_path, 0)
    edit(tmp_path, examples=2**47)
    made = audited(tmp_path)
    assert made.grade == "untested"
    assert "at most 10,000 examples" in made.untested[0].why


def test_numbers_beyond_the_types_of_the_model_are_refused(tmp_path: Path) -> None:
    before = dict(network().state_dict())
    for number, (old, new) in enumerate([(1.0, 1e300), (3e38, -3e38)]):
        own = tmp_path / str(number)
        fill = [{n: torch.full_like(v, x, dtype=torch.float64) for n, v in before.items()} for x in (old, new)]
        write_capture(own, Capture(round=1, client="0", before=fill[0], sent=fill[1], examples=1))
        with pytest.raises(InputError, match=r"large .*torch\.float32"):
            audited(own)


# -- what the user tells


def raising(_: int) -> Any:
    raise KeyError("nobody\nhome")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"truth": raising}, r"truth\(0\) raised KeyError"),
        ({"truth": lambda _: None}, r"truth\(0\) .*got NoneType"),
        ({"truth": lambda p: (*held(p), 3)}, "must return"),
        ({"truth": lambda p: (held(p)[0], ["x"])}, r"truth\(0\): labels must"),
        ({"truth": lambda p: (2 * held(p)[0] - 1, held(p)[1])}, "mean and std"),
        ({"truth": lambda p: held(p, 3)}, "must give 1 inputs"),
        ({"model": 3}, "nn.Module, got int"),
        ({"clients": 0}, "clients .*1.."),
        ({"mean": (0.5,)}, "belong together"),
    ],
)
def test_what_the_user_tells_is_checked_in_one_line(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    write(tmp_path, 0)
    with pytest.raises(InputError, match=said) as refused:
        audited(tmp_path, **changed)
    assert "\n" not in str(refused.value)


def test_truth_may_list_its_labels_and_lie_outside_the_range_of_the_sample(tmp_path: Path) -> None:
    before, sent = sent_by(network(), 2 * held(0)[0] - 1, held(0)[1], 0.1)
    write_capture(
        tmp_path,
        Capture(round=1, client="0", before=before, sent=sent, partition=0, examples=1, config={"lr": 0.1}),
    )
    sample = held(9, 20)[0] - 0.5  # narrower than what the client holds
    made = audited(tmp_path, inputs=sample, truth=lambda p: (2 * held(p)[0] - 1, held(p)[1].tolist()))
    assert made.grade == "F"  # the division is exact: scored against what was held, not against what was cut off
    assert next(run for run in made.runs if run.name == "analytic").scores.mse.item() < 1e-8


# -- models


@pytest.mark.parametrize("function", [Old.apply, lambda x: x if float(x.sum()) < 9 else -x])
@pytest.mark.parametrize("truth", [None, held])
def test_attacks_that_cannot_run_on_a_model_are_named_and_the_division_stays(
    tmp_path: Path, function: Any, truth: Any
) -> None:
    torch.manual_seed(0)
    model = Through(function, 6)
    write(tmp_path, 0, model=model)
    made = audited(tmp_path, model=model, truth=truth)
    assert {item.what for item in made.untested} >= {"cpl", "ig"}
    assert (made.unscored if truth is None else made.runs)[0].name == "analytic"
    assert {item.what for item in made.untested} & BASELINES == (set() if truth is None else BASELINES)


def test_batch_norm_over_one_captured_example_is_one_clear_line(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))
    write(tmp_path, 0, model=model.eval())
    with pytest.raises(InputError, match=r"at least 2 .*eval\(\)"):
        audited(tmp_path, model=model.train())
    assert audited(tmp_path, model=model.eval()).grade == "unscored"


@pytest.mark.parametrize("loss", ["cross_entropy", nn.BCEWithLogitsLoss(), nn.functional.mse_loss])
@pytest.mark.parametrize("scored", [True, False])
def test_one_output_is_divided_whatever_the_loss(tmp_path: Path, loss: Any, scored: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    x, y = held(0)[0], torch.tensor([[1.0]])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    slopes = torch.autograd.grad(nn.functional.binary_cross_entropy_with_logits(model(x), y), list(model.parameters()))
    sent = dict(zip(before, slopes, strict=True))
    write_capture(
        tmp_path, Capture(round=1, client="0", before=before, sent=sent, partition=0, examples=1, shares="gradient")
    )
    truth = (lambda _: (x, y[0])) if scored else None  # N labels, where outputs are N x 1
    made = audited(tmp_path, model=model, loss=loss, truth=truth)
    left_out = {item.what for item in made.untested} - {"target recovery", "label recovery", *BASELINES}
    assert (not left_out) == (loss != "cross_entropy")  # which is 0 for one logit
    named = {run.name for run in (made.runs if scored else made.unscored)} | {cut.name for cut in made.short}
    assert (f"cpl, {TARGETS}" in named) or not scored or left_out
    guess = made.runs[0] if scored else made.unscored[0]
    assert guess.name == "analytic"
    torch.testing.assert_close(guess.reconstruction.inputs[0], x, rtol=1e-4, atol=1e-5)
    assert made.grade == ("F" if scored else "unscored")


# -- rounds of one client


def write_rounds(
    directory: Path, clients: int, rounds: int, examples: int, *, spoiled: int | None = None, **told: Any
) -> None:
    """Write captures of clients that answer several rounds with the same data; in one round they send noise."""
    for number in range(rounds):
        torch.manual_seed(number)
        model = nn.Sequential(nn.Linear(6, 5), nn.Sigmoid(), nn.Linear(5, 3))
        for client in range(clients):
            before, sent = sent_by(model, *held(client, examples), 0.1)
            if number == spoiled:
                sent = {name: value + torch.randn_like(value) for name, value in sent.items()}
            fields = {"partition": client, "examples": examples, "config": {"lr": 0.1}} | told
            capture = Capture(round=number, client=f"{client}", before=before, sent=sent, **fields)
            write_capture(directory, capture)


@pytest.mark.parametrize("told", [{}, {"partition": None}])
def test_rounds_of_one_client_are_one_client(tmp_path: Path, told: dict[str, Any]) -> None:
    write_rounds(tmp_path, 2, 3, 8, **told)
    made = audited(tmp_path, truth=None if told else lambda p: held(p, 8))
    for run in made.unscored if told else (*made.runs, *made.nulls):
        assert run.reconstruction.trials == 2
    assert any(BEST_ROUND in note for note in made.notes)
    assert made.short
    assert all(cut.working <= cut.clients == 2 for cut in made.short)
    if not told:
        assert (made.measures.asr.n, made.measures.asr.trials) == (16, 2)
        assert made.exposure.trials == 2
        assert made.labels.n == 16


@pytest.mark.parametrize("spoiled", [0, 1, 2])
def test_the_best_round_is_chosen_by_the_mismatch(tmp_path: Path, spoiled: int) -> None:
    write_rounds(tmp_path, 2, 3, 1, spoiled=spoiled)
    made = audited(tmp_path, truth=held)
    assert made.grade == "F"
    assert made.recovered == 2


def test_the_round_with_most_certified_samples_stands_above_a_smaller_mismatch() -> None:
    mismatch = torch.tensor([1e-9, 0.2, 0.1, 0.3])
    proved = torch.tensor([[False, False], [True, False], [True, False], [False, False]])
    guess = SimpleNamespace(mismatch=mismatch, trace=mismatch[:, None], outcome=torch.full((4,), 2), proved=proved)
    owners = torch.tensor([0, 0, 0, 1])
    assert best_rounds(guess, owners).tolist() == [2, 3]  # type: ignore[arg-type]
    guess.proved = None
    assert best_rounds(guess, owners).tolist() == [0, 3]  # type: ignore[arg-type]


def test_every_client_comes_before_the_second_round_of_any(tmp_path: Path) -> None:
    write_rounds(tmp_path, 3, 2, 1)
    assert audited(tmp_path, truth=held, clients=3).measures.asr.n == 3
    assert audited(tmp_path, truth=held, clients=4).measures.asr.n == 3
    assert audited(tmp_path, truth=held, clients=2).measures.asr.n == 2


def write_batches(directory: Path, clients: int, rounds: int) -> None:
    """Write captures of clients that hold 8 digits each and answer with every round's other weights; client c leaves c rounds out."""
    for number in range(rounds):
        torch.manual_seed(3000 + number)
        model = digit_network()
        for client in range(clients):
            if number >= rounds - client:
                continue
            before, after = sent_by(model, *digits(client), 1.0)
            sent = {name: before[name] - value for name, value in after.items()}
            whose: dict[str, Any] = {"client": f"{client}", "partition": client, "examples": 8, "shares": "gradient"}
            write_capture(directory, Capture(round=number, before=before, sent=sent, **whose))


def digit_network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))


def digits(partition: int) -> tuple[Tensor, Tensor]:
    data, rows = load("digits"), range(8 * partition, 8 * partition + 8)
    return data.pictures("train", rows).flatten(1), torch.as_tensor(data.labels("train", rows))


def exact(guess: Tensor, truth: Tensor) -> set[int]:
    near = (guess[None] - truth[:, None]).square().mean(-1).amin(1) < 1e-6
    return set(near.nonzero().flatten().tolist())


def recovered(run: Any, client: int) -> set[int]:
    return set(run.recovered[client].nonzero().flatten().tolist())


def divided(directory: Path, client: int) -> list[set[int]]:
    """Return the true digits among the quotients of every round, by an attack on each capture alone."""
    model = from_module(digit_network(), input_shape=(64,))
    known = Knowledge(input_shape=(64,), classes=10, samples=8)
    captures = [read_capture(path) for path in sorted(directory.glob(f"*client-{client}.json"))]
    seen = [observe_captures([each], model, 8, Shares.GRADIENT) for each in captures]
    return [exact(analytic().run(model, each, known, [0]).inputs[0], digits(client)[0]) for each in seen]


def test_what_exact_attacks_recover_from_rounds_of_a_client_adds_up(tmp_path: Path) -> None:
    write_batches(tmp_path, 2, 4)
    made = audited(
        tmp_path, model=digit_network(), input_shape=(64,), truth=digits, attacks=["analytic", "peeling"], minutes=0.3
    )
    runs = {run.name: run for run in made.runs}
    alone = [divided(tmp_path, client) for client in range(2)]
    every = [set().union(*rounds) for rounds in alone]
    assert any(len(union) > max(map(len, rounds)) for union, rounds in zip(every, alone, strict=True))
    for client, union in enumerate(every):
        assert recovered(runs["analytic, all rounds"], client) >= union
    proved = runs["peeling, all rounds"].reconstruction.proved
    assert int(proved.sum()) > int(runs["peeling"].reconstruction.proved.sum()) > 0
    assert made.recovered >= sum(map(len, every))
    assert made.measures.asr.n == 16  # distinct samples, whatever the number of rounds


def test_a_round_that_was_spoiled_takes_nothing_away(tmp_path: Path) -> None:
    write_batches(tmp_path, 1, 3)
    paths = sorted(tmp_path.glob("*.json"))
    spoiled = read_capture(paths[0])
    noisy = {name: value + 100 * torch.randn_like(value) for name, value in spoiled.sent.items()}
    for path in (paths[0], paths[0].with_suffix(".safetensors")):
        path.unlink()
    write_capture(tmp_path, replace(spoiled, sent=noisy))
    rounds = divided(tmp_path, 0)
    assert not rounds[0]
    made = audited(tmp_path, model=digit_network(), input_shape=(64,), truth=digits, attacks=["analytic"], minutes=0.2)
    whole = next(run for run in made.runs if run.name == "analytic, all rounds")
    assert recovered(whole, 0) >= rounds[1] | rounds[2] != set()


def test_all_rounds_are_read_without_the_truth_too(tmp_path: Path) -> None:
    write_batches(tmp_path, 2, 4)
    made = audited(tmp_path, model=digit_network(), input_shape=(64,), attacks=["analytic", "peeling"], minutes=0.3)
    runs = {run.name: run.reconstruction for run in made.unscored}
    assert len(exact(runs["analytic, all rounds"].inputs[0], digits(0)[0])) > max(map(len, divided(tmp_path, 0)))
    assert int(runs["peeling, all rounds"].proved.sum()) > int(runs["peeling"].proved.sum()) > 0


def test_clients_of_unequal_rounds_are_read_as_if_alone(tmp_path: Path) -> None:
    write_batches(tmp_path, 2, 3)
    model = from_module(digit_network(), input_shape=(64,))
    known = Knowledge(input_shape=(64,), classes=10, samples=8)
    captures = [read_capture(path) for path in sorted(tmp_path.glob("*.json"))]
    owners = tuple(int(each.client) for each in captures)
    assert sorted(owners) == [0, 0, 0, 1, 1]
    seen = observe_captures(captures, model, 8, Shares.GRADIENT)
    whole = AllRounds(analytic(), owners).run(model, seen, known, list(range(5)))
    for client in range(2):
        own = [t for t, owner in enumerate(owners) if owner == client]
        parts = [observe_captures([captures[t]], model, 8, Shares.GRADIENT) for t in own]
        joint = replace(parts[0], rounds=tuple(part.rounds[0] for part in parts))
        alone = analytic().run(model, joint, known, [own[0]])
        for t in own:
            assert torch.equal(whole.inputs[t], alone.inputs[0])


def test_no_run_on_all_rounds_where_each_client_has_one(tmp_path: Path) -> None:
    write(tmp_path, 0)
    made = audited(tmp_path, truth=held)
    assert not any("all rounds" in run.name for run in made.runs)


# -- what is inferred


def test_label_counts_are_told_where_the_rate_is_not(tmp_path: Path) -> None:
    write(tmp_path, 0, config={})
    notes = " ".join(audited(tmp_path).notes)
    assert "class 0: 1 (" in notes
    assert "rate times steps" in notes


def test_buffers_that_a_client_sent_are_part_of_its_observation(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    model = from_module(module.eval(), input_shape=(1, 4, 4))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    x = torch.rand(5, 1, 4, 4)
    module.train()(x)
    capture(before, module, directory=tmp_path, round=1, client=0, samples=5)
    captured = read_capture(tmp_path / "round-00001-client-0.json")
    seen = observe_captures([captured], model, 5, Shares.WEIGHTS)
    read = read_batch_statistics(model, seen, Knowledge((1, 4, 4), 3, 5))["1"]
    entering = module[0](x)
    assert_close(read.mean[0], entering.mean((0, 2, 3)).double(), rtol=0, atol=1e-6)
    assert_close(read.variance[0], entering.var((0, 2, 3), unbiased=False).double(), rtol=0, atol=1e-6)
    trainable = {name: value for name, value in captured.sent.items() if name in model.parameters}
    silent = observe_captures([replace(captured, sent=trainable)], model, 5, Shares.WEIGHTS)
    assert silent.rounds[0].buffers_after is None


# -- buffers of another network


def normed(*, places: tuple[int, ...] = (1,), width: int = 5, sync: bool = False) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(6, 5), nn.Sigmoid(), nn.Linear(5, 3)]
    for place in places:
        layers.insert(place, nn.SyncBatchNorm(width) if sync else nn.BatchNorm1d(width))
    return nn.Sequential(*layers)


@pytest.mark.parametrize("where", ["before", "sent"])
@pytest.mark.parametrize(("name", "length"), [("7.running_mean", 5), ("1.running_mean", 4), ("0.running_var", 5)])
def test_buffers_of_another_network_in_a_capture_are_refused(
    tmp_path: Path, where: str, name: str, length: int
) -> None:
    model = normed()
    before, sent = ({key: value.clone() for key, value in model.state_dict().items()} for _ in range(2))
    before[name] = torch.zeros(length)
    if where == "sent":
        sent[name] = torch.ones(length)
    else:
        sent.pop(name, None)
    capture(before, sent, directory=tmp_path, round=1, client=0, samples=2)
    with pytest.raises(InputError, match=rf"from another model.*{name}") as caught:
        audited(tmp_path, model=model)
    assert "\n" not in str(caught.value)


def test_weights_missing_from_a_capture_are_named(tmp_path: Path) -> None:
    model = normed()
    sent = {name: value + 0.1 for name, value in model.state_dict().items() if name != "3.bias"}
    capture(model.state_dict(), sent, directory=tmp_path, round=1, client=0, samples=2)
    with pytest.raises(InputError, match=r"part of it was not sent: it lacks '3\.bias'"):
        audited(tmp_path, model=model)


def test_statistics_of_a_batch_norm_that_is_replaced_for_the_attacks_are_no_error(tmp_path: Path) -> None:
    model = normed(sync=True)
    sent = {name: value + 0.1 if value.is_floating_point() else value for name, value in model.state_dict().items()}
    capture(model.state_dict(), sent, directory=tmp_path, round=1, client=0, samples=2)
    made = audited(tmp_path, model=model, input_shape=(6,))
    assert {run.name for run in made.unscored} | {cut.name for cut in made.short}
