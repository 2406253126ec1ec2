"""Static lines: what each says of models whose leak is known, and that odd models give a line, never a traceback."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from leakscope import Client, Clip, LocalTraining, inspect
from leakscope.attacks.labels import LABEL_RULES
from leakscope.attacks.recipes import ATTACKS, prior_only
from leakscope.auditing import Audit, attack_runs, audit, suite
from leakscope.auditing.audit_record import audit_record
from leakscope.auditing.static.adapters import find_adapters
from leakscope.auditing.static.facts import Severity, Topic
from leakscope.auditing.static.inspection import Inspection
from leakscope.auditing.verdict import Grade
from leakscope.core.errors import InputError
from leakscope.models import MODELS
from leakscope.report.audit_page import page_of_audit
from leakscope.report.page import render

ROOT = Path(__file__).parents[2]


def mlp(activation: type[nn.Module] = nn.ReLU, units: int = 40) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, units), activation(), nn.Linear(units, 3))


def sample(number: int = 32) -> Tensor:
    return torch.rand(number, 1, 4, 4, generator=torch.Generator().manual_seed(0))


def severities(found: Inspection) -> dict[Topic, Severity]:
    return {line.topic: line.severity for line in found.lines}


class Counted(nn.Module):
    """A network that counts its forward passes."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.passes = network, 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return self.network(x)


@pytest.mark.parametrize("inputs", [None, torch.rand(2, 3, 32, 32)])
def test_one_forward_pass_is_enough_and_the_model_is_not_changed(inputs: Tensor | None) -> None:
    model = Counted(MODELS["resnet18"](input_shape=(3, 32, 32), classes=10)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    drawn = torch.get_rng_state()
    found = inspect(model, batch=8, input_shape=(3, 32, 32), inputs=inputs)
    assert model.passes == 1
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(drawn, torch.get_rng_state())
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in model.modules())
    assert [line.topic for line in found.lines] == list(dict.fromkeys(line.topic for line in found.lines))
    assert {*severities(found)} == {*Topic}
    assert found[Topic.BUFFERS].numbers["channels"] == 4800
    assert found[Topic.DIVISION].severity is Severity.PARTIAL
    assert len(found.ranks) == 21


@pytest.mark.parametrize(
    ("activation", "batch", "severity", "decided"),
    [
        (nn.Sigmoid, 1, Severity.EXACT, "analytic"),
        (nn.ReLU, 1, Severity.EXACT, "analytic"),
        (nn.ReLU, 8, Severity.EXACT, "peeling"),
        (nn.GELU, 8, Severity.PARTIAL, "analytic"),
    ],
)
def test_a_first_dense_layer_divides(activation: type[nn.Module], batch: int, severity: Severity, decided: str) -> None:
    line = inspect(mlp(activation), batch=batch, input_shape=(1, 4, 4))[Topic.DIVISION]
    assert line.severity is severity
    assert decided in line.decided_by
    assert line.numbers == {"layers": 2, "features": 16, "units": 40}


class Shifted(nn.Module):
    """Normalises its input by constants."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - 0.3) / 0.2


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize(("first", "severity"), [(Shifted(), Severity.EXACT), (nn.Conv2d(1, 1, 1), Severity.PARTIAL)])
def test_what_no_parameter_changed_is_divided_like_the_input(first: nn.Module, severity: Severity, batch: int) -> None:
    found = inspect(nn.Sequential(first, *mlp(nn.ReLU)), batch=batch, input_shape=(1, 4, 4))
    assert found[Topic.DIVISION].severity is severity
    assert ("analytic" in found[Topic.UNITS].decided_by) == (severity is Severity.EXACT and batch == 1)
    assert (
        found[Topic.DIVISION].finding
        != inspect(mlp(nn.ReLU), batch=batch, input_shape=(1, 4, 4))[Topic.DIVISION].finding
    )


BETWEEN = [nn.Identity(), nn.BatchNorm1d(40), nn.BatchNorm1d(40).eval(), nn.LayerNorm(40), nn.Dropout(0.1).eval()]


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("activation", [nn.ReLU, nn.ReLU6, nn.Tanh, nn.LeakyReLU, nn.GELU])
def test_units_stay_at_zero_where_their_gradients_do(between: nn.Module, activation: type[nn.Module]) -> None:
    first = nn.Linear(16, 40).double()
    rest = nn.Sequential(between.double(), activation(), nn.Linear(40, 3).double())
    z = first(sample(6).flatten(1).double()).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(rest(z), torch.arange(6) % 3), z)
    found = inspect(nn.Sequential(first, *rest), batch=4, input_shape=(16,))
    assert (found[Topic.DIVISION].severity is Severity.EXACT) == bool((gradient == 0).any())


def test_an_activation_of_the_users_own_is_not_known() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(16, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.sin(self.first(x)))

    assert inspect(Odd(), batch=4, input_shape=(16,))[Topic.UNITS].severity is Severity.UNKNOWN


def test_the_share_alone_is_that_of_the_examples_among_the_quotients() -> None:
    module, x = mlp(units=12).double(), sample(6).double()
    line = inspect(module, batch=6, inputs=x)[Topic.UNITS]
    nn.functional.cross_entropy(module(x), torch.arange(6) % 3).backward()
    weight, bias = module[1].weight.grad, module[1].bias.grad
    quotients = (weight / bias[:, None])[bias.abs() > 1e-12]
    there = torch.cdist(x.flatten(1), quotients).amin(1) < 1e-6
    assert line.numbers["alone"] == float(there.double().mean())
    assert 0 < line.numbers["alone"] < 1


def test_without_a_sample_the_expected_units_are_bounds() -> None:
    numbers = inspect(mlp(units=100), batch=4, input_shape=(1, 4, 4))[Topic.UNITS].numbers
    assert numbers["expected_at_half"] == 100 * 4 / 2**4
    assert numbers["expected_most"] == pytest.approx(100 * (3 / 4) ** 3)


def test_a_frozen_or_bare_first_layer_does_not_divide() -> None:
    module = mlp()
    module[1].requires_grad_(False)
    assert inspect(module, input_shape=(1, 4, 4))[Topic.DIVISION].numbers["features"] == 40
    assert inspect(module, input_shape=(1, 4, 4))[Topic.SENT].numbers["tensors"] == 2
    after = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3, bias=False))
    assert inspect(after, input_shape=(1, 4, 4))[Topic.DIVISION].severity is Severity.NONE
    frozen = inspect(module.requires_grad_(False), input_shape=(1, 4, 4))
    assert frozen[Topic.SENT].severity is frozen[Topic.LABELS].severity is Severity.NONE


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("bias", [False, True])  # of the layer behind the first
def test_a_first_layer_without_a_bias_is_left_to_the_attack_that_needs_none(
    batch: int, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = nn.Sequential(nn.Linear(16, 40, bias=False), nn.ReLU(), nn.Linear(40, 3, bias=bias))
    found = inspect(bare, batch=batch, input_shape=(16,))
    line = found[Topic.DIVISION]
    assert (line.severity, line.decided_by) == (Severity.PARTIAL, ("cpa",))
    assert "the ratio is unknown" in line.finding
    assert ("layer 2 divides" in line.finding) == bias
    assert (found[Topic.UNITS].severity, found[Topic.UNITS].decided_by) == (Severity.PARTIAL, ("cpa",))
    made = audited(bare, torch.rand(12, 16), monkeypatch, None, examples=batch)
    reasons = {item.what: item.why for item in made.untested}
    assert reasons["analytic"] == "the first layer is dense, but 0.weight has no bias to be divided by; cpa needs none"
    assert "cpa" in {run.name for run in made.runs}


@pytest.mark.parametrize(
    ("train", "sends", "severity"),
    [
        (True, True, Severity.PARTIAL),
        (True, False, Severity.NONE),
        (True, None, Severity.UNKNOWN),
        (False, True, Severity.NONE),
    ],
)
def test_buffers_tell_only_where_they_move_and_are_sent(train: bool, sends: bool | None, severity: Severity) -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)).train(train)
    client = LocalTraining(epochs=2, batch_size=2)
    line = inspect(module, batch=4, client=client, input_shape=(1, 4, 4), sends_buffers=sends)[Topic.BUFFERS]
    assert line.severity is severity
    assert line.numbers == {"layers": 1, "channels": 2, "steps": 4}


@pytest.mark.parametrize(("norm", "severity"), [("train", Severity.PARTIAL), ("eval", Severity.NONE)])
def test_the_client_says_whether_buffers_move_and_are_sent(norm: str, severity: Severity) -> None:
    module = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2), nn.ReLU(), nn.Linear(2, 3))
    client = Client(sends_buffers=True, norm=norm)  # type: ignore[arg-type]
    assert inspect(module, client=client, input_shape=(4,))[Topic.BUFFERS].severity is severity
    assert inspect(module, client=Client(), input_shape=(4,))[Topic.BUFFERS].severity is Severity.NONE


class Text(nn.Module):
    """Tokens to logits of a class, or of the next token through the tied table."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 50, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.table(x).mean(1))


@pytest.mark.parametrize(("tied", "severity"), [(False, Severity.EXACT), (True, Severity.PARTIAL)])
def test_rows_of_an_embedding_show_tokens_unless_it_is_tied(tied: bool, severity: Severity) -> None:
    module = Text(tied=tied)
    for given in ({"input_shape": (6,)}, {"inputs": torch.randint(50, (4, 6))}):
        line = inspect(module, batch=2, **given)[Topic.EMBEDDINGS]
        assert line.severity is severity
        assert line.numbers == {"tables": 1, "tied": int(tied), "rows": 50}
    module(torch.tensor([[1, 1, 7, 7, 9, 9]])).square().sum().backward()
    moved = module.table.weight.grad.abs().sum(1).nonzero().flatten().tolist()
    assert (moved == [1, 7, 9]) == (not tied)


class Adapted(nn.Module):
    """A frozen dense layer with a low-rank one beside it."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(8, 8).requires_grad_(False)
        self.inner = nn.Parameter(torch.randn(rank, 8))
        self.outer = nn.Parameter(torch.zeros(8, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.inner.T @ self.outer.T


class Attention(nn.Module):
    """Two adapters that share their input, and a trained head."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.query, self.value, self.head = Adapted(rank), Adapted(rank), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((torch.sigmoid(self.query(x)) * self.value(x)).mean(1))


@pytest.mark.parametrize(
    ("optimiser", "tokens", "trained", "severity"),
    [
        ("sgd", 3, True, Severity.EXACT),
        ("sgd", 4, True, Severity.PARTIAL),  # 8 tokens against 2 modules of rank 3
        ("adam", 3, True, Severity.PARTIAL),
        ("sgd", 3, False, Severity.PARTIAL),  # the first gradient of the inner factor is zero
    ],
)
def test_adapters_span_as_many_tokens_as_their_budget(
    optimiser: str, tokens: int, trained: bool, severity: Severity
) -> None:
    module = Attention(3)
    if trained:
        nn.init.normal_(module.query.outer)
        nn.init.normal_(module.value.outer)
    line = inspect(module, batch=2, client=LocalTraining(optimiser=optimiser), input_shape=(tokens, 8))[Topic.ADAPTERS]
    assert line.severity is severity
    assert (line.numbers["budget"], line.numbers["tokens"]) == (6, 2 * tokens)
    assert [each.rank for each in find_adapters(module)] == [3, 3]


def test_no_adapter_is_seen_where_there_is_none() -> None:
    assert find_adapters(mlp()) == []
    assert find_adapters(MODELS["vit"](input_shape=(3, 32, 32), classes=10)) == []


@pytest.mark.parametrize(("batch", "severity"), [(1, Severity.EXACT), (8, Severity.PARTIAL)])
def test_labels_are_read_from_the_head(batch: int, severity: Severity) -> None:
    assert inspect(mlp(), batch=batch, input_shape=(1, 4, 4))[Topic.LABELS].severity is severity
    signed = nn.Sequential(nn.Linear(16, 4), nn.Tanh(), nn.Linear(4, 3, bias=False))
    assert inspect(signed, batch=batch, input_shape=(16,))[Topic.LABELS].severity is Severity.NONE
    mapped = nn.Sequential(nn.Conv2d(1, 3, 3))
    assert inspect(mapped, batch=batch, input_shape=(1, 4, 4))[Topic.LABELS].severity is Severity.NONE


def test_fewer_numbers_than_private_ones_collide() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2))
    line = inspect(module, batch=2, input_shape=(1, 8, 8))[Topic.COLLISIONS]
    assert line.numbers == {"sent": 26, "private": 128, "ratio": 26 / 128}
    assert line.severity is Severity.NONE
    assert inspect(mlp(), batch=2, input_shape=(1, 4, 4))[Topic.COLLISIONS].severity is Severity.NEUTRAL


class Stubborn(nn.Module):
    def __init__(self, forward: object) -> None:
        super().__init__()
        self.layer, self._act = nn.Linear(4, 2), forward

    def forward(self, x: Tensor) -> object:
        return self._act(self.layer, x)


def _raise(_layer: nn.Module, _x: Tensor) -> Tensor:
    raise KeyError("odd")


@pytest.mark.parametrize(
    ("act", "known"),
    [
        (_raise, False),
        (lambda layer, x: {"logits": layer(x)}, True),
        (lambda layer, x: layer(x) if float(x.sum()) > 0 else -layer(x), True),  # reads values
        (lambda layer, x: layer(layer(x).repeat(1, 2)), True),  # runs twice
        (lambda layer, x: x.sum(), True),
    ],
)
def test_an_odd_model_gives_lines_and_no_traceback(act: object, known: bool) -> None:
    found = inspect(Stubborn(act), batch=2, input_shape=(4,))
    assert len(found.lines) == len(Topic)
    assert (found[Topic.DIVISION].severity is not Severity.UNKNOWN) == known
    assert json.loads(json.dumps(found.to_dict()))["lines"]


def test_without_a_shape_the_lines_that_need_one_are_not_known() -> None:
    found = severities(inspect(mlp()))
    assert found[Topic.SENT] is Severity.NEUTRAL
    wanted = {Topic.DIVISION, Topic.UNITS, Topic.LABELS, Topic.COLLISIONS, Topic.RANKS}
    assert {topic for topic, severity in found.items() if severity is Severity.UNKNOWN} == wanted


def test_half_precision_and_no_parameters_are_inspected() -> None:
    assert inspect(mlp().half(), input_shape=(1, 4, 4))[Topic.DIVISION].severity is Severity.EXACT
    assert inspect(nn.Flatten(), input_shape=(4,))[Topic.SENT].severity is Severity.NONE


@pytest.mark.parametrize(
    "given",
    [
        {"model": "mlp"},
        {"model": nn.LazyLinear(3)},
        {"batch": 0},
        {"batch": 1.5},
        {"client": "sgd"},
        {"input_shape": (0, 4)},
        {"inputs": torch.rand(0, 4)},
    ],
)
def test_a_mistake_is_one_clear_line(given: dict[str, object]) -> None:
    with pytest.raises(InputError) as caught:
        inspect(**({"model": mlp()} | given))  # type: ignore[arg-type]
    assert len(str(caught.value).splitlines()) == 1


def test_every_line_names_an_attack_and_a_page_that_exist() -> None:
    shapes = dict.fromkeys(("mlp", "lenet_cpl", "resnet20", "vit"), (3, 32, 32))
    found = [
        inspect(
            MODELS[name](input_shape=shape, classes=10),
            batch=batch,
            input_shape=shape,
            client=Client(defences=(Clip(1.0),)),
        )
        for name, shape in shapes.items()
        for batch in (1, 8)
    ]
    found += [inspect(Text(tied=False), input_shape=(4,)), inspect(Attention(2), input_shape=(4, 8))]
    for line in (line for each in found for line in each.lines):
        assert {*line.decided_by} <= {*ATTACKS, *LABEL_RULES}
        path, _, anchor = line.page.partition("#")
        titles = re.findall(r"^#+ (.*)$", (ROOT / "docs" / path).read_text(encoding="utf-8"), re.MULTILINE)
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_dropout_leaves_quotients_and_no_certificate() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 40), nn.ReLU(), nn.Dropout(0.1), nn.Linear(40, 4))
    for training, deciding in ((True, ("analytic",)), (False, ("peeling", "spear"))):
        lines = {line.topic: line for line in inspect(net.train(training), batch=4, input_shape=(1, 8, 8)).lines}
        assert lines[Topic.DIVISION].decided_by == lines[Topic.UNITS].decided_by == deciding
        assert ("none is certified: dropout is on" in lines[Topic.DIVISION].finding) == training


def test_a_shape_that_does_not_fit_is_named_for_the_type_that_the_network_takes() -> None:
    lines = inspect(nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), batch=2, input_shape=(3, 8, 8)).lines
    (finding,) = {line.finding for line in lines if line.severity is Severity.UNKNOWN}
    assert finding.startswith(
        "not known: the model cannot run on torch.float32 of shape (2, 3, 8, 8): mat1 and mat2 shapes"
    )


def test_an_inspection_shows_itself_in_few_lines_and_escapes_names() -> None:
    module = nn.Module()
    module.__class__ = type("<b>", (nn.Sequential,), {})
    module.add_module("0", nn.Linear(4, 2))
    found = inspect(module, input_shape=(4,))
    assert len(repr(found).splitlines()) <= 1 + len(Topic)
    assert "<b>" not in found._repr_html_()
    assert found._repr_html_().count("<tr>") == 1 + len(Topic)


def audited(
    module: nn.Module,
    inputs: Tensor,
    monkeypatch: pytest.MonkeyPatch,
    attacks: tuple[str, ...] | None,
    examples: int = 2,
) -> Audit:
    monkeypatch.setattr(suite, "PUBLISHED", dict.fromkeys(suite.PUBLISHED, 1) | {"cpl": 1, "ig": 2, "sme": 2})
    monkeypatch.setattr(attack_runs, "prior_only", partial(prior_only, iterations=2))
    labels = torch.arange(len(inputs)) % 3
    return audit(
        module,
        "cross_entropy",
        inputs,
        labels,
        examples=examples,
        minutes=0.5,
        clients=2,
        remedies=False,
        attacks=attacks,
    )


def test_the_lines_stand_in_the_record_the_text_and_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    found = audited(mlp(), sample(12), monkeypatch, ("peeling", "analytic"))  # the cheap ones
    assert found.static is not None
    assert found.static.batch == 2
    record = json.loads(json.dumps(audit_record(found)))
    assert record["static"] == json.loads(json.dumps(found.static.to_dict()))
    assert record["threat_model"] == "B"
    assert all(line in str(found) for line in found.static.shown())
    page = page_of_audit(found, command="")
    assert [row.topic for row in page.static] == [line.topic for line in found.static.lines]
    assert ("peeling", True) in next(row for row in page.static if row.topic == Topic.DIVISION).decided_by
    assert 'id="static"' in render(page)


@pytest.mark.slow
def test_an_audit_of_tokens_has_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    found = audited(Text(tied=False), torch.randint(50, (12, 4)), monkeypatch, None)
    assert found.grade not in (Grade.A, Grade.B)
    assert found.static is not None
    assert found.static[Topic.EMBEDDINGS].severity is Severity.EXACT
    assert audit_record(found)["threat_model"] == "B"


def test_logits_inside_an_output_object_still_show_labels() -> None:
    class Output:
        def __init__(self, logits: Tensor) -> None:
            self.logits = logits

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Output:
            return Output(self.head(x))

    assert inspect(Wrapped(), input_shape=(4,))[Topic.LABELS].severity is Severity.EXACT
