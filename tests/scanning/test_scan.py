"""A scan suspects what honest models do not have, names what it did not test, and changes nothing."""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from typer.testing import CliRunner

import traps
from leakscope import Scan, Target, scan
from leakscope.cli import app
from leakscope.core.errors import InputError
from leakscope.core.tree import take
from leakscope.models import from_module, gpt
from leakscope.models.low_rank import adapt
from leakscope.models.token_model import TokensFromNumbers
from leakscope.play import shared_weights
from leakscope.scanning.biases import large_biases, set_biases
from leakscope.scanning.dense_rows import mirrored_rows
from leakscope.scanning.findings import ABOUT, Reading, Test, Verdict
from leakscope.scanning.own_batch import read_batch, relative_loss
from leakscope.scanning.reference import BATCHES, MOST, judge_reading, key_of, limit_of, load_reference
from leakscope.servers.adapter_imprint import AdapterImprint
from leakscope.servers.catalogue import MANIPULATIONS, OF_SENTENCES
from leakscope.servers.decepticons import Decepticons
from leakscope.servers.fishing import Fishing
from leakscope.servers.imprint import BIAS, FIRST, Imprint
from leakscope.servers.inconsistent import Inconsistent
from leakscope.servers.loki import Loki
from leakscope.servers.manipulation import Manipulation, dishonest_weights
from leakscope.servers.soliton import SolitonBiases
from leakscope.servers.trap_weights import TrapWeights

ON_DATA = (Test.D_SNR, Test.CLASS_D_SNR, Test.LOSS, Test.DEGREES, Test.PEELING)


def scanned(net: nn.Module, number: int = 64, previous: nn.Module | None = None) -> Scan:
    inputs, labels = traps.digits(number)
    return scan(Target(model=net, inputs=inputs, labels=labels), previous=previous)


def suspects(result: Scan) -> set[Test]:
    return {line.test for line in result.having(Verdict.SUSPECT)}


@pytest.mark.parametrize(
    ("trap", "honest", "test"),
    [
        (traps.imprint, traps.dense, Test.EQUAL_ROWS),
        (traps.trap_weights, traps.dense, Test.MIRRORED_ROWS),
        (traps.one_hot_filters, traps.convolutional, Test.TRANSMIT_SNR),
        (traps.one_hot_filters, traps.convolutional, Test.TRANSMITTING),
        (traps.dead_branch, traps.convolutional, Test.DEAD),
        (traps.identity_attention, traps.attending, Test.IDENTITY),
        (traps.identity_attention, traps.attending, Test.LARGEST),
        (traps.few_hot_positions, traps.attending, Test.FEW_HOT),
    ],
)
def test_the_weights_of_a_trap_are_suspect(
    trap: Callable[[], nn.Module], honest: Callable[[], nn.Module], test: Test
) -> None:
    assert scan(trap())[test].verdict is Verdict.SUSPECT
    assert scan(honest())[test].verdict is Verdict.USUAL
    assert not scan(honest()).suspected


@pytest.mark.parametrize(
    ("trap", "tests"),
    [
        (traps.one_example_units, {Test.DEGREES, Test.PEELING}),
        (traps.class_fishing, {Test.CLASS_D_SNR, Test.LOSS, Test.LARGEST}),
        (traps.lone_example, {Test.D_SNR}),
    ],
)
def test_what_a_trap_does_to_the_own_batch_is_suspect(trap: Callable[[], nn.Module], tests: set[Test]) -> None:
    assert tests <= suspects(scanned(trap()))


def manipulated(manipulation: Manipulation) -> nn.Module:
    """Return the digits' network as a dishonest server sends it; of inserted units the first layer alone."""
    net, (x, _) = traps.dense(), traps.digits(256)
    model = from_module(net, input_shape=(1, 8, 8))
    sent = take(dishonest_weights(manipulation, model, shared_weights(model, 1), x, [0])[1], 0)
    if FIRST in sent:
        net = nn.Sequential(nn.Linear(*sent[FIRST].shape[::-1]))
        sent = {"0.weight": sent[FIRST], "0.bias": sent[BIAS]}
    net.load_state_dict(sent)
    return net


WEIGHTS_ALONE = {
    "imprint": (Imprint(), Test.EQUAL_ROWS),
    "loki": (Loki(clients=3, units=64), Test.EQUAL_ROWS),
    "inconsistent": (Inconsistent(clients=3, client=2), Test.DEAD),
    "trap_weights": (TrapWeights(), Test.MIRRORED_ROWS),
    "fishing": (Fishing(target=3), Test.LARGEST),
    "soliton_biases": (SolitonBiases(), Test.SET_BIASES),
}


@pytest.mark.parametrize("name", [name for name in MANIPULATIONS if name not in OF_SENTENCES])
def test_the_weights_of_every_manipulation_are_suspect(name: str) -> None:
    manipulation, test = WEIGHTS_ALONE[name]
    assert test in suspects(scan(manipulated(manipulation)))


def test_clients_of_a_sum_that_get_other_weights_have_other_hashes() -> None:
    sent = [manipulated(Inconsistent(3, SolitonBiases(), client=number)) for number in (0, 1, 2)]
    hashes = [scan(each).hash for each in sent]
    assert [scan(sent[0], hashes=[each])["hash of the weights"].verdict for each in hashes] == [
        Verdict.USUAL,
        Verdict.SUSPECT,
        Verdict.SUSPECT,
    ]


@pytest.mark.parametrize(
    ("trap", "layers", "tests"),
    [
        (Decepticons(), (), {Test.EQUAL_ROWS, Test.LARGEST}),
        (AdapterImprint(), ("query", "value", "dense1"), {Test.EQUAL_ROWS, Test.LARGEST, Test.DEAD}),
        (AdapterImprint(), ("query", "value"), {Test.LARGEST, Test.DEAD}),
    ],
)
def test_a_transformer_that_imprints_tokens_is_suspect_and_the_honest_one_is_not(
    trap: Manipulation, layers: tuple[str, ...], tests: set[Test]
) -> None:
    torch.manual_seed(0)
    net, x = gpt(vocabulary=50, positions=8, width=32, depth=3, classes=3), torch.randint(50, (40, 8))
    if layers:
        net = adapt(net, rank=8, layers=layers)
    model = from_module(TokensFromNumbers(net), input_shape=(8,), example=x[:2].float())
    extended, changed = dishonest_weights(trap, model, shared_weights(model, 1), x.float(), [0])
    sent = extended.buffers | take(changed, 0)
    assert not scan(net).suspected
    net.load_state_dict({name.removeprefix("network."): value for name, value in sent.items()})
    assert tests <= suspects(scan(net))


def test_a_value_that_honest_models_reach_whatever_it_is_is_shown() -> None:
    line = judge_reading(Test.D_SNR, Reading(math.inf), 16)
    assert load_reference()[key_of(Test.D_SNR, 16)].most == MOST
    assert line.verdict is Verdict.SHOWN


def test_soliton_biases_are_suspect_by_what_they_read_back() -> None:
    assert {Test.DEGREES, Test.PEELING} <= suspects(scanned(manipulated(SolitonBiases())))


@pytest.mark.parametrize("from_data", [True, False])
@pytest.mark.parametrize("epochs", [0, 5])
def test_soliton_biases_on_inputs_in_0_1_follow_from_the_rows_and_honest_ones_do_not(
    from_data: bool, epochs: int
) -> None:
    trap, honest = soliton(traps.digits(256), epochs, from_data)
    assert Test.SET_BIASES in suspects(scan(trap))
    assert not scan(honest).suspected


def test_soliton_biases_on_standardised_inputs_are_large_beside_the_rows() -> None:
    x, y = traps.digits(256)
    trap, honest = soliton(((x - x.mean()) / x.std(), y), 5, True)
    assert suspects(scan(trap)) == {Test.LARGE_BIASES}
    assert not scan(honest).suspected


def soliton(data: tuple[Tensor, Tensor], epochs: int, from_data: bool) -> tuple[nn.Module, nn.Module]:
    """Return a network with soliton biases and the honest one, trained for some epochs."""
    net, (x, y) = traps.dense(), data
    optimiser = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
    for _ in range(4 * epochs):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    model = from_module(net, input_shape=(1, 8, 8))
    sent = take(dishonest_weights(SolitonBiases(from_data=from_data), model, shared_weights(model, 1), x, [0])[1], 0)
    trap = copy.deepcopy(net)
    trap.load_state_dict(sent)
    return trap, net


def test_the_share_that_biases_cancel_is_that_of_the_best_mean_input() -> None:
    """Against the formula at many mean inputs; 2,000 rows, so that chance explains little."""
    layer, generator = nn.Linear(16, 2000), torch.Generator().manual_seed(0)
    nn.init.normal_(layer.weight, generator=generator)
    sums, noise = layer.weight.detach().sum(1), torch.randn(2000, generator=generator)
    for mean, spread in ((0.5, 0.5), (0.5, 3.0), (0.02, 0.02)):
        with torch.no_grad():
            layer.bias.copy_(-mean * sums + spread * noise)
        bias = layer.bias.detach()
        shares = [1 - float((bias + t * sums).var() / (t * sums).var()) for t in torch.linspace(0.2, 20, 3000)]
        assert set_biases(layer).value == pytest.approx(max(shares), abs=0.06)
        assert set_biases(layer).value < max(shares) + 1e-3
    with torch.no_grad():
        layer.bias.copy_(0.5 * sums)  # as training moves them
    assert set_biases(layer).value == 0.0
    assert set_biases(nn.Sequential(nn.LayerNorm(16), layer)).value is None
    assert large_biases(nn.Sequential(nn.LayerNorm(16), layer)).value is None


@pytest.mark.parametrize(("rows", "value"), [(5.0, 0.5), (0.0, None)])
def test_the_size_of_biases_is_counted_in_norms_of_live_rows(rows: float, value: float | None) -> None:
    layer = nn.Linear(25, 20)
    nn.init.constant_(layer.weight, rows / 5)
    nn.init.constant_(layer.bias, -2.5)
    assert large_biases(layer).value == pytest.approx(value)


@pytest.mark.parametrize("number", BATCHES)
def test_honest_models_are_not_suspected(number: int) -> None:
    assert not scanned(traps.dense(), number).suspected
    assert not scanned(traps.convolutional(), number).suspected


def test_examples_that_honest_weights_give_away_are_a_leak_and_no_trap() -> None:
    line = scanned(traps.dense(), 16)[Test.PEELING]
    assert line.verdict is Verdict.LEAKS
    assert line.numbers["received"] > 0


@pytest.mark.parametrize("features", [13, 64, 65])
def test_mirrored_rows_are_found_whatever_the_number_of_features(features: int) -> None:
    half = torch.randn(50, features // 2).abs()
    rows = torch.cat([-half, 0.7 * half, -torch.rand(50, features % 2)], 1)
    net = nn.Linear(features, 50)
    net.weight.data = rows.gather(1, torch.rand(50, features).argsort(1))
    assert mirrored_rows(net).value == 1.0
    net.weight.data = torch.randn(50, features)
    assert mirrored_rows(net).value == 0.0


def test_gradient_norms_are_those_of_single_examples() -> None:
    net, (x, y) = traps.convolutional(), traps.digits(16)
    own = read_batch(net, x, y, "cross_entropy")
    weights = {name: value.detach() for name, value in net.named_parameters()}

    def loss(values: dict[str, torch.Tensor], one: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(functional_call(net, values, one[None]), label[None])

    gradients = vmap(grad(loss), (None, 0, 0))(weights, x, y)
    for name, values in gradients.items():
        torch.testing.assert_close(own.norms[name], values.flatten(1).norm(dim=1), rtol=1e-4, atol=1e-7)
    ratios = [float(n.max() / (n.sum() - n.max())) for n in own.norms.values()]
    assert own.d_snr().value == pytest.approx(max(ratios))
    expected = float(nn.functional.cross_entropy(net(x), y).detach()) / math.log(10)
    assert relative_loss(net, x, y, "cross_entropy") == pytest.approx(expected, rel=1e-5)


def test_what_was_not_tested_is_named() -> None:
    inputs, labels = traps.digits(16)
    bare = scan(traps.dense())
    assert all(bare[test].verdict is Verdict.NOT_TESTED for test in (*ON_DATA, Test.JUMP, Test.LOSS_JUMP))
    unlabelled = scan(Target(model=traps.dense(), inputs=inputs))
    assert unlabelled[Test.D_SNR].verdict is Verdict.NOT_TESTED
    assert unlabelled[Test.DEGREES].verdict is Verdict.USUAL
    few = scan(Target(model=traps.dense(), inputs=inputs[:8], labels=labels[:8]))
    assert {few[test].verdict for test in ON_DATA} == {Verdict.NOT_TESTED}
    assert all(each[Test.TRAINED_DECODER].verdict is Verdict.NOT_TESTED for each in (bare, unlabelled, few))
    assert bare[Test.TRANSMIT_SNR].verdict is Verdict.ABSENT


def test_a_layer_that_the_server_replaced_is_a_jump_and_a_round_of_training_is_none() -> None:
    before, (x, y) = traps.dense(), traps.digits()
    after = copy.deepcopy(before)
    optimiser = torch.optim.SGD(after.parameters(), lr=0.1)
    for _ in range(4):
        optimiser.zero_grad()
        nn.functional.cross_entropy(after(x), y).backward()
        optimiser.step()
    honest = scanned(after, 16, previous=before)
    assert {honest[test].verdict for test in (Test.JUMP, Test.LOSS_JUMP)} == {Verdict.USUAL}
    assert {Test.JUMP, Test.LOSS_JUMP} <= suspects(scanned(traps.class_fishing(), 16, previous=before))
    dead = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
    alive = copy.deepcopy(dead)
    nn.init.zeros_(dead[1].weight)
    assert scan(dead)[Test.DEAD].verdict is Verdict.USUAL  # as fresh ResNets begin
    assert scan(dead, previous=alive)[Test.DEAD].verdict is Verdict.SUSPECT


def test_a_scan_prints_its_suspects_and_shows_a_table_in_a_notebook() -> None:
    result = scanned(traps.imprint(), 16)
    head, *lines = repr(result).splitlines()
    assert result.name in head
    assert len(lines) == len(suspects(result)) > 0
    assert "equal rows 1 at 1 (honest 0, at most 0.25; limit 0.5)" in repr(result)
    assert result._repr_html_().count("<tr>") == 1 + len(result.lines)


@pytest.mark.parametrize("text", ["", "abc", 64 * "g", 65 * "a"])
def test_text_that_is_no_hash_is_refused(text: str) -> None:
    """A mistyped hash must not look like another model."""
    with pytest.raises(InputError, match="hashes"):
        scan(traps.dense(), hashes=[text])


def test_the_number_of_threads_is_restored() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        inputs = torch.rand(16, 1, 4, 4, generator=torch.Generator().manual_seed(0))
        scan(Target(model=nn.Sequential(nn.Flatten(), nn.Linear(16, 4)), inputs=inputs, labels=torch.arange(16) % 4))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_hashes_of_other_clients_decide() -> None:
    own = scan(traps.dense()).hash
    assert own == scan(copy.deepcopy(traps.dense())).hash
    other = traps.dense()
    other[1].bias.data[3] = other[1].bias.data[3].nextafter(torch.tensor(1.0))
    assert scan(other).hash != own
    assert scan(traps.dense(), hashes=[own, own.upper()])[Test.HASH].verdict is Verdict.USUAL
    assert scan(other, hashes=[own])[Test.HASH].verdict is Verdict.SUSPECT


def test_adapters_that_start_at_zero_are_not_dead() -> None:
    net = nn.Sequential()
    net.add_module("query", nn.Linear(16, 16))
    assert scan(adapt(net, rank=2))[Test.DEAD].value == 0.0


def test_token_networks_are_scanned() -> None:
    inputs = torch.randint(20, (16, 6), generator=torch.Generator().manual_seed(0))
    result = scan(Target(model=traps.attending(), inputs=inputs, labels=torch.arange(16) % 3))
    assert result[Test.LOSS].verdict is Verdict.USUAL
    assert result[Test.PEELING].verdict is Verdict.ABSENT


def test_a_scan_changes_neither_the_model_nor_the_generator() -> None:
    net = nn.Sequential(traps.dense(), nn.BatchNorm1d(10), nn.Dropout()).train()
    weights, state = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    scanned(net)
    assert net.training
    assert all(torch.equal(value, weights[name]) for name, value in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_what_does_not_fit_is_one_line() -> None:
    inputs, labels = traps.digits(16)
    with pytest.raises(InputError, match=r"^previous is of another network: 1\.weight is \(64, 64\).*$"):
        scan(traps.dense(), previous=traps.dense(64))
    with pytest.raises(InputError, match=r"^the model cannot run on inputs of shape \(3, 5\): .*$"):
        scan(Target(model=traps.dense(), inputs=torch.rand(16, 3, 5), labels=labels))
    with pytest.raises(InputError, match=r"^labels .*$"):
        scan(Target(model=traps.dense(), inputs=inputs, labels=labels[:4]))
    with pytest.raises(InputError, match=r"^labels .*$"):
        scan(Target(model=traps.dense(), inputs=inputs, labels=labels + 10))
    with pytest.raises(InputError, match=r"^inputs hold NaN"):
        scan(Target(model=traps.dense(), inputs=inputs / 0, labels=labels))


def test_infinite_gradients_are_suspect_and_a_frozen_model_has_none() -> None:
    net = traps.dense()
    net[3].weight.data *= 1e38
    assert scanned(net)[Test.D_SNR].verdict is Verdict.SUSPECT
    frozen = scanned(traps.dense().requires_grad_(False), 16)
    assert frozen[Test.D_SNR].verdict is Verdict.ABSENT


def test_json_holds_numbers_only() -> None:
    net = traps.dense()
    net[1].bias.data[0] = math.inf
    record = json.loads(json.dumps(scanned(net, 16).to_dict(), allow_nan=False))
    assert record["suspected"] is True
    assert {line["test"] for line in record["lines"]} == {test.value for test in Test}


def test_every_test_has_a_reference_of_honest_models() -> None:
    reference, on_batch = load_reference(), {Test.D_SNR, Test.CLASS_D_SNR, Test.DEGREES, Test.PEELING}
    for test in set(Test) - {Test.HASH, Test.TRAINED_DECODER}:
        for key in [key_of(test, size) for size in BATCHES] if test in on_batch else [key_of(test)]:
            honest = reference[key]
            assert honest.median <= honest.p99 <= honest.most < honest.limit == limit_of(test, honest.most)
            assert honest.limit < 1 or not ABOUT[test].share


MODULE = """
import torch
from torch import Tensor, nn

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

def trap():
    net = build()
    nn.init.constant_(net[1].weight, 0.1)
    return net
"""


def test_the_command_exits_with_0_1_or_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "received.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    runner = CliRunner()
    clean = runner.invoke(app, ["scan", "received:build", "--previous", "received:build", "--json"])
    assert clean.exit_code == 0
    record = json.loads(clean.output)
    trapped = runner.invoke(app, ["scan", "received:trap", "--data", "digits"])
    assert trapped.exit_code == 1
    assert runner.invoke(app, ["scan", "received:build", "--hash", record["hash"]]).exit_code == 0
    untested = runner.invoke(app, ["scan", "torch.nn:Identity", "--json"])
    assert untested.exit_code == 1
    untested_record = json.loads(untested.output)
    assert (untested_record["passed"], untested_record["suspected"]) == (False, False)
    assert runner.invoke(app, ["scan", "received:trap", "--hash", record["hash"]]).exit_code == 1
    other = ["received:build", "--previous", "x.safetensors"]
    for bad in (["nothing:build"], ["mlp"], other, ["received:build", "--data", "no"]):
        assert isinstance(runner.invoke(app, ["scan", *bad]).exception, InputError)
    save_file(traps.dense(64).state_dict(), tmp_path / "other.safetensors")
    other_weights = ["--weights", str(tmp_path / "other.safetensors")]
    for options, why in (
        (
            other_weights,
            "other.safetensors is of another network: 1.weight is (64, 64) in it and (32, 64) in the model",
        ),
        (["--input-shape", "1x8x8"], "received:build builds its own"),
        (["--data", "no.safetensors"], "there is no file no.safetensors"),
    ):
        assert why in str(runner.invoke(app, ["scan", "received:build", *options]).exception)


@pytest.mark.slow
def test_a_resnet18_with_64_pictures_takes_less_than_ten_seconds() -> None:
    from leakscope.models.resnet18 import resnet18

    net = resnet18(input_shape=(3, 32, 32), classes=10)
    began = time.process_time()
    scan(Target(model=net, inputs=torch.rand(64, 3, 32, 32), labels=torch.arange(64) % 10))
    assert time.process_time() - began < 10  # of one thread; the seconds of the clock depend on other processes
