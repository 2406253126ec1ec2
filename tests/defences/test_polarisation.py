"""The Secret Polarization Network in the client: what it sends against plain torch, and what never leaves it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.testing import assert_close

from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.recipes import cpl
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import Tree, flat_names, subtract, take, to
from leakscope.core.types import Batch, LocalTraining, make_batch
from leakscope.defences import GaussianNoise
from leakscope.defences.on_model import Polarisation
from leakscope.defences.on_model.polarisation import distinct
from leakscope.kernels.checkpoint import Checkpoint
from leakscope.learning.polarisation import BIAS, CODES, WEIGHT
from leakscope.models import Uniform, build, draw_parameters
from leakscope.scenario import scenario_of
from leakscope.store import Run
from leakscope.store.captures import Capture, write_capture
from leakscope.sweep import run_scenario
from leakscope.sweep.engines import serial

SEEDS, CLASSES, BITS = [11, 12, 13], 4, 6
SPN = Polarisation(0.3, bits=BITS)
LOCAL = LocalTraining(epochs=2, batch_size=2, rate=0.1, momentum=0.9, weight_decay=0.05, shuffle=False)


def network() -> Model:
    return to(build("lenet_dlg", (1, 8, 8), CLASSES, {"width": 2}), dtype=torch.float64)


def weights_of(model: Model) -> Tree:
    return to(draw_parameters(model, Uniform(0.3), random.key(SEEDS)), dtype=torch.float64)


def batch_of(samples: int = 3, trials: int = 3) -> Batch:
    generator = torch.Generator().manual_seed(5)
    x = torch.rand((trials, samples, 1, 8, 8), generator=generator, dtype=torch.float64)
    return make_batch(x, torch.randint(CLASSES, (trials, samples), generator=generator), classes=CLASSES)


def secrets_of(model: Model, guard: Polarisation = SPN) -> Tree:
    keys = random.fold(random.key(SEEDS), "client")
    return guard.draw(guard.polarise(model), keys)


class Dual(nn.Module):
    """The same network written down by hand: a backbone and two dense layers."""

    def __init__(self, model: Model, weights: Tree, secret: Tree) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(model.apply.module).double()
        self.backbone.load_state_dict(weights)
        self.public, self.backbone.head = self.backbone.head, nn.Identity()
        self.private = nn.Linear(secret[WEIGHT].shape[1], BITS).double()
        self.private.load_state_dict({"weight": secret[WEIGHT], "bias": secret[BIAS]})

    def loss(self, x: Tensor, y: Tensor, codes: Tensor, a1: float, a2: float, m: float) -> Tensor:
        h = self.backbone(x)
        hinge = torch.relu(m - self.private(h) * codes[y]).sum(1).mean()
        return a1 * F.cross_entropy(self.public(h), y) + a2 * hinge

    def shared(self, gradient: bool) -> Tree:
        named = {f"{'head.' + n[7:] if n.startswith('public.') else n[9:]}": p for n, p in self.named_parameters()}
        return {n: p.grad if gradient else p.detach() for n, p in named.items() if n in network().parameters}


# -- what is sent


@pytest.mark.parametrize("guard", [SPN, Polarisation(0.4, None, 2.0, BITS), Polarisation(2.0, 0.0, 1.5, BITS, 0.3)])
def test_one_gradient_is_that_of_two_heads_written_by_hand_with_each_clients_own_secrets(guard: Polarisation) -> None:
    model, batch = network(), batch_of()
    weights, secret = weights_of(model), secrets_of(model, guard)
    seen = Client(on_model=guard).observe(model, weights, batch, SEEDS)
    assert_close(seen.rounds[0].before, weights, rtol=0, atol=0)
    for i in range(3):
        dual = Dual(model, take(weights, i), take(secret, i))
        a1 = guard.alpha1 if guard.alpha1 is not None else 1 - guard.alpha2
        dual.loss(batch.inputs[i], batch.labels[i], secret[CODES][i], a1, guard.alpha2, guard.margin).backward()
        assert_close(take(seen.rounds[0].sent, i), dual.shared(gradient=True), rtol=1e-8, atol=1e-10)


def test_local_training_trains_both_heads_and_sends_the_public_part() -> None:
    model, batch = network(), batch_of(4)
    weights, secret = weights_of(model), secrets_of(model)
    seen = Client(LOCAL, on_model=SPN).observe(model, weights, batch, SEEDS)
    for i in range(3):
        dual = Dual(model, take(weights, i), take(secret, i))
        optimiser = torch.optim.SGD(dual.parameters(), lr=0.1, momentum=0.9, weight_decay=0.05)
        for chosen in ([0, 1], [2, 3]) * 2:
            optimiser.zero_grad()
            dual.loss(batch.inputs[i, chosen], batch.labels[i, chosen], secret[CODES][i], 1, 0.3, 1).backward()
            optimiser.step()
        assert_close(take(seen.rounds[0].sent, i), dual.shared(gradient=False), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("local", [None, LOCAL])
def test_many_clients_at_once_send_what_each_sends_alone(local: LocalTraining | None) -> None:
    model, batch = network(), batch_of()
    weights, client = weights_of(model), Client(local, on_model=SPN)
    many = client.observe(model, weights, batch, SEEDS)
    for i in range(3):
        one = client.observe(model, take(weights, slice(i, i + 1)), take(batch, slice(i, i + 1)), SEEDS[i : i + 1])
        assert_close(one.rounds[0].sent, take(many.rounds[0].sent, slice(i, i + 1)), rtol=1e-9, atol=1e-11)


def test_a_strength_for_every_client_and_none_at_zero() -> None:
    model, batch = network(), batch_of()
    weights = weights_of(model)
    swept = Client(on_model=replace(SPN, alpha2=torch.tensor([0.0, 0.1, 0.5]))).observe(model, weights, batch, SEEDS)
    plain = Client().observe(model, weights, batch, SEEDS)
    moved = []
    for i, strength in enumerate((0.0, 0.1, 0.5)):
        alone = Client(on_model=replace(SPN, alpha2=strength)).observe(model, weights, batch, SEEDS)
        assert_close(take(swept.rounds[0].sent, i), take(alone.rounds[0].sent, i), rtol=1e-6, atol=1e-9)
        moved.append(subtract(alone.rounds[0].sent, plain.rounds[0].sent))
    assert_close(take(swept.rounds[0].sent, 0), take(plain.rounds[0].sent, 0))
    assert_close(moved[2], {n: 5 * v for n, v in moved[1].items()})  # the perturbation is a2 times one vector


def test_the_gradient_of_the_public_head_is_not_hidden() -> None:
    """The private term never reaches the public head: what the server gets of it is a1 times the plain gradient."""
    model, batch = network(), batch_of()
    weights = weights_of(model)
    hidden = Client(on_model=Polarisation(5.0, 0.5, bits=BITS)).observe(model, weights, batch, SEEDS).rounds[0].sent
    plain = Client().observe(model, weights, batch, SEEDS).rounds[0].sent
    for name in ("head.weight", "head.bias"):
        assert_close(hidden[name], 0.5 * plain[name])
    assert float((hidden["conv1.weight"] - 0.5 * plain["conv1.weight"]).norm()) > 1e-3


def test_defences_on_the_update_come_after() -> None:
    model, batch = network(), batch_of()
    weights = weights_of(model)
    quiet = Client(on_model=SPN).observe(model, weights, batch, SEEDS).rounds[0].sent
    noisy = Client(on_model=SPN, defences=(GaussianNoise(0.5),)).observe(model, weights, batch, SEEDS).rounds[0].sent
    noise = torch.cat([(noisy[n] - quiet[n]).flatten() for n in quiet])
    assert set(noisy) == set(quiet)
    assert abs(float(noise.std()) / 0.5 - 1) < 0.1


# -- secrets


def test_every_client_has_codes_and_a_head_of_its_own_from_its_key() -> None:
    model = network()
    one, other = secrets_of(model), secrets_of(model, replace(SPN, spread=0.3))
    assert set(one) == {WEIGHT, BIAS, CODES}
    assert one[CODES].shape == (3, CLASSES, BITS)
    assert one[CODES].unique().tolist() == [-1.0, 1.0]
    assert len(one[CODES].flatten(1).unique(dim=0)) == len(one[WEIGHT].flatten(1).unique(dim=0)) == 3
    features = one[WEIGHT].shape[-1]
    assert 0.9 * features**-0.5 < one[WEIGHT].abs().max() <= features**-0.5
    assert 0.27 < other[WEIGHT].abs().max() <= 0.3
    assert_close(secrets_of(model), one, rtol=0, atol=0)
    coins = Polarisation(bits=4096).draw(Polarisation(bits=4096).polarise(model), random.key([3]))[CODES]
    assert abs(float(coins.mean())) < 6 / coins.numel() ** 0.5


def codes_of(bits: int, classes: int, clients: int) -> tuple[Tensor, Tensor]:
    """Return a client's codes, and the signs of the same draws as they come."""
    guard, model = Polarisation(bits=bits), build("mlp", (3,), classes, {"hidden": (2,)})
    keys = random.key(range(clients))
    drawn = random.uniform(random.fold(random.fold(keys, "polarisation"), CODES), (classes, bits))
    return guard.draw(guard.polarise(model), keys)[CODES], torch.where(2 * drawn - 1 < 0, -1.0, 1.0)


def classes_with_a_code_of_their_own(codes: Tensor) -> Tensor:
    return torch.tensor([len({tuple(row) for row in own.tolist()}) for own in codes])


@pytest.mark.parametrize(("bits", "classes"), [(4, 10), (4, 16), (1, 2), (7, 100), (5, 10)])
def test_no_two_classes_of_a_client_have_one_code_and_distinct_ones_stay(bits: int, classes: int) -> None:
    codes, signs = codes_of(bits, classes, 40)
    assert codes.abs().unique().tolist() == [1.0]
    assert (classes_with_a_code_of_their_own(codes) == classes).all()
    before = classes_with_a_code_of_their_own(signs) == classes
    assert not before.all()
    assert torch.equal(codes[before], signs[before])
    earlier = torch.stack([(signs[:, :k] == signs[:, k : k + 1]).all(-1).any(-1) for k in range(classes)], 1)
    moved = (codes != signs).any(-1)
    assert (moved | ~earlier).all()  # a repeated code gives way
    assert not moved[:, 0].any()


@pytest.mark.parametrize(("bits", "classes"), [(32, 10), (64, 100)])
def test_long_codes_are_as_they_were_drawn(bits: int, classes: int) -> None:
    codes, signs = codes_of(bits, classes, 20)
    assert torch.equal(codes, signs)


def test_codes_are_made_distinct_under_vmap_too() -> None:
    bits = torch.rand(6, 10, 4, generator=torch.Generator().manual_seed(0)) < 0.5
    assert torch.equal(torch.vmap(distinct)(bits), torch.stack([distinct(own) for own in bits]))
    assert torch.equal(distinct(bits), torch.vmap(distinct)(bits))
    guard = Polarisation(bits=4)
    model, keys = guard.polarise(build("mlp", (3,), 10, {"hidden": (2,)})), random.key(range(5))
    assert torch.equal(torch.vmap(lambda key: guard.draw(model, key)[CODES])(keys), guard.draw(model, keys)[CODES])


def test_what_a_client_keeps_moves_the_head_and_never_the_codes() -> None:
    model, batch = network(), batch_of(4)
    client = Client(LOCAL, on_model=SPN)
    secret = take(secrets_of(model), 0)
    answer = client.answer(
        SPN.polarise(model), (), (), take(weights_of(model), 0) | secret, {}, *take((batch.inputs, batch.labels, batch.mask), 0),
        random.key(1),
    )  # fmt: skip
    assert set(answer.update) == set(model.parameters)
    assert torch.equal(answer.weights[CODES], secret[CODES])
    assert not torch.equal(answer.weights[WEIGHT], secret[WEIGHT])


@pytest.mark.parametrize("local", [None, LOCAL])
@pytest.mark.parametrize("rounds", [1, 2])
def test_the_observation_holds_no_secret(local: LocalTraining | None, rounds: int, tmp_path: Path) -> None:
    model, batch = network(), batch_of(4)
    seen = Client(local, on_model=SPN, rounds=rounds, server_rate=0.1).observe(model, weights_of(model), batch, SEEDS)
    found = flat_names(seen)
    public = {f"rounds/{r}/{part}/{n}" for r in range(rounds) for part in ("before", "sent") for n in model.parameters}
    assert set(found) == public | {"samples"}
    for number, one in enumerate(seen.rounds):
        for i in range(3):
            write_capture(
                tmp_path, Capture(round=number, client=str(i), before=take(one.before, i), sent=take(one.sent, i))
            )
    files = list(tmp_path.iterdir())
    assert len(files) >= 2 * 3 * rounds
    assert not leaks(files, secrets_of(model))


def leaks(files: list[Path], secret: Tree) -> list[str]:
    """Return the files that hold a row of a private tensor, in float32 or float64, or a code's bits packed or as int8."""
    rows = [row for name in (WEIGHT, CODES) for row in secret[name].flatten(0, 1)] + list(secret[BIAS])
    needles = {row.to(kind).contiguous().numpy().tobytes() for row in rows for kind in (torch.float32, torch.float64)}
    needles |= {c.to(torch.int8).numpy().tobytes() for c in secret[CODES].flatten(1)}
    needles |= {np.packbits(c.numpy() > 0).tobytes() for c in secret[CODES].flatten(1) if c.numel() >= 64}
    return [str(path) for path in files for text in [path.read_bytes()] if any(needle in text for needle in needles)]


def test_no_file_of_a_sweep_holds_a_secret(tmp_path: Path) -> None:
    scenario = scenario_of(
        {
            "data": "digits",
            "model": {"name": "lenet_dlg", "width": 2},
            "client": {"on_model": {"bits": 16}},
            "attacks": [{"name": "cpl", "iterations": 1}],
            "trials": 2,
            "seeds": SEEDS[:1],
            "baselines": [],
            "precision": {"form": "native", "chunk": 2},
            "grid": {"client.on_model.alpha2": [0.1, 0.4]},
        }
    )
    done = run_scenario(scenario, tmp_path / "run", engine=serial, measure=False)
    assert (done.left, done.landed) == (0, 8)
    model, guard = build("lenet_dlg", (1, 8, 8), 10, {"width": 2}), Polarisation(bits=16)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 3
    seeds = sorted({record.seed for record in Run.open(tmp_path / "run").records()})
    keys = random.fold(random.key(seeds), "client")
    assert not leaks(files, guard.draw(guard.polarise(model), keys))


@pytest.mark.slow
def test_no_checkpoint_of_an_attack_holds_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = to(network(), dtype=torch.float32), to(batch_of(1), dtype=torch.float32)
    client = Client(on_model=SPN)
    seen = client.observe(model, to(weights_of(model), dtype=torch.float32), batch, SEEDS)
    kept: list[Path] = []

    def save(self: Checkpoint, value: object, *, tick: int) -> None:
        kept.append(tmp_path / f"{tick}.safetensors")
        save_file({n: t.detach().contiguous().clone() for n, t in flat_names(value).items()}, kept[-1])

    monkeypatch.setattr(Checkpoint, "save", save)
    how = Execution(form="native", directory=tmp_path / "work", save_every=0.0)
    cpl(iterations=1).run(model, seen, attacker_knowledge(model, client, batch), SEEDS, how)
    assert kept
    assert not leaks([*kept, *(p for p in (tmp_path / "work").rglob("*") if p.is_file())], secrets_of(model))


def test_the_reader_above_finds_what_is_there(tmp_path: Path) -> None:
    secret = secrets_of(network())
    for number, value in enumerate((secret[WEIGHT], secret[CODES], secret[WEIGHT].float(), secret[BIAS])):
        save_file({"x": value.contiguous()}, tmp_path / f"{number}")
    assert len(leaks(sorted(tmp_path.iterdir()), secret)) == 4


# -- bad input


def wrong() -> Iterator[tuple[dict, str]]:
    yield {"alpha2": -0.1}, r"Polarisation.alpha2 must be in \[0, inf\), got -0.1"
    yield {"alpha2": float("nan")}, "Polarisation.alpha2 must be in"
    yield {"alpha1": -1.0}, r"Polarisation.alpha1 must be in \[0, inf\), got -1.0"
    yield {"alpha1": None, "alpha2": 1.2}, r"Polarisation.alpha2 must be in \[0, 1\] where alpha1 is 1 - alpha2"
    yield {"margin": 0.9}, r"Polarisation.margin must be in \[1, inf\), got 0.9"
    yield {"margin": torch.tensor([1.0, 0.5])}, "Polarisation.margin must be in"
    yield {"bits": 0}, "Polarisation.bits must be a whole number of at least 1, got 0"
    yield {"bits": 2.5}, "Polarisation.bits must be a whole number"
    yield {"spread": 0.0}, r"Polarisation.spread must be in \(0, inf\), got 0.0"


@pytest.mark.parametrize(("settings", "message"), list(wrong()))
def test_settings_that_make_no_sense_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Polarisation(**settings)


def test_more_classes_than_codes_and_strengths_of_another_length_are_refused() -> None:
    model, batch = network(), batch_of()
    with pytest.raises(InputError, match=r"bits = 1 .*2 codes.* 4 classes"):
        Client(on_model=Polarisation(bits=1)).observe(model, weights_of(model), batch, SEEDS)
    uneven = Client(on_model=Polarisation(torch.tensor([0.1, 0.2]), bits=BITS))
    with pytest.raises(InputError, match=r"on_model.alpha2 .*\(2,\)"):
        uneven.observe(model, weights_of(model), batch, SEEDS)


def test_a_scenario_refuses_it_at_its_place() -> None:
    with pytest.raises(InputError, match=r"client.on_model.margin: .*\[1, inf\)"):
        scenario_of({"data": "digits", "model": "dlnet", "attack": "cpl", "client": {"on_model": {"margin": 0.5}}})
