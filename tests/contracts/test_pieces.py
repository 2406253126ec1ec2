"""One table of cases for each kind of attack part, keyed by the class or function. Every part of the package needs a case.

Parts are found by walking `leakscope.attacks`: what has the signature of a kind is of that kind. Laws: shape, dtype, repeatability,
input untouched, many trials under vmap equal one trial at a time.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import leakscope.attacks
import leakscope.defences
import leakscope.metrics
from leakscope.attacks import (
    ALPHA,
    ATTACKS,
    DISTANCES,
    GUESS,
    LABEL,
    LABEL_RULES,
    OPTIMISERS,
    PRIORS,
    PULL,
    SHIFT,
    SIMULATORS,
    STARTS,
    AveragedDropout,
    BoxPenalty,
    Clock,
    Constant,
    CopiesStart,
    Dummy,
    DummyPolarised,
    EpochCopies,
    EveryCopy,
    HeadGradient,
    Insider,
    Interval,
    KnownDropout,
    LabelRegulariser,
    LayerMatch,
    LocalSteps,
    Match,
    Moved,
    NearIdentity,
    NoPull,
    Norm,
    Normal,
    OneGradient,
    OnSimulated,
    OnTheLine,
    OrderInvariant,
    OutOfRange,
    Patterned,
    Pulled,
    Simulated,
    Solid,
    ThroughMap,
    ThroughPolicy,
    TotalVariation,
    Uniform,
    View,
    Within,
    cosine,
    into_box,
    squared_l2,
)
from leakscope.attacks.batch_statistics import BatchStatistics
from leakscope.attacks.deep_prior import THETA, Generated, Generator, ThroughGenerator
from leakscope.attacks.defended import Clipped, LargestSent, Rounded, Sent, Whitened, bound_of, sent_coordinates
from leakscope.attacks.dlfa import COPIES, average_copies
from leakscope.attacks.feature_inversion import FeatureMatch, LayerInput
from leakscope.attacks.group import GROUP, EachMember, GroupConsistency, InGroup, Others, mean_member
from leakscope.attacks.known_policy import CHOICE, LONGEST, SIGNS, AddTransformed, Zeros
from leakscope.attacks.null import silent, simulate_nothing
from leakscope.attacks.objectives import dtype_of, length_in, unit_of
from leakscope.attacks.polarised import Uncertain
from leakscope.attacks.priors import Langevin, OpponentVariation, PositionGradient
from leakscope.attacks.pulled import Zeros as NoPulls
from leakscope.attacks.tokens.embedded import Embedded
from leakscope.attacks.tokens.readings import TEXT_ATTACKS
from leakscope.attacks.tokens.token_attacks import RowLength, TagMatch
from leakscope.attacks.translate import AFFINE, AddSeen, identity, no_shift
from leakscope.attacks.units import InNoiseUnits, PerGradient, Scaled
from leakscope.attacks.view import Entering
from leakscope.attacks.watched import HeadFeatures, Watched
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.registry import summary
from leakscope.core.scaling import Scaling
from leakscope.core.tree import Tree, lift, take, tensors, to
from leakscope.core.types import Batch, Knowledge, LocalTraining, Observation, make_batch
from leakscope.defences import (
    DEFENCES,
    ChosenNoise,
    Clip,
    DeepCompression,
    DropRows,
    GaussianNoise,
    LaplaceNoise,
    LowRank,
    Quantise,
    RandomMask,
    Sign,
    Sparsify,
)
from leakscope.defences.stack import begin, protect
from leakscope.learning.polarisation import BIAS, CODES, WEIGHT, public_head
from leakscope.metrics import METRICS, Direction, Metric, label_correct, label_overlap, match
from leakscope.models import Torch, build, draw_parameters

torch.set_num_threads(1)
TRIALS, SAMPLES, CLASSES, BITS = 3, 2, 4, 5
SHAPE = (3, 8, 8)
SEEDS = [5, 6, 7]
KEYS = random.key(SEEDS)
SCALING = Scaling((0.4, 0.5, 0.6), (0.2, 0.3, 0.5))
LOCAL = LocalTraining(epochs=2, batch_size=1, rate=0.05)
POLICIES = ((("translate_x", 0.3), ("contrast", 0.4)), (("brightness", 0.2),))
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


# -- the walk


def public_parts(package: ModuleType) -> Iterator[Any]:
    """Yield every public class and function of a package, each once, from the module that defines it."""
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            written_here = getattr(value, "__module__", None) == info.name and not name.startswith("_")
            if written_here and (inspect.isclass(value) or inspect.isfunction(value)):
                yield value


def signature_of(part: Any) -> tuple[str, ...]:
    """Return `name: type` of what a part is called with; nothing where it cannot be called on a trial."""
    call = vars(part).get("__call__") if inspect.isclass(part) else part
    if call is None or getattr(part, "_is_protocol", False):
        return ()
    parameters = list(inspect.signature(call).parameters.values())[1 if inspect.isclass(part) else 0 :]
    return tuple(f"{parameter.name}: {parameter.annotation}" for parameter in parameters)


def of_kind(*parameters: str) -> set[Any]:
    """Return the parts of all attacks that are called with these parameters."""
    return {part for part in public_parts(leakscope.attacks) if signature_of(part) == parameters}


def having(package: ModuleType, *methods: str) -> set[type]:
    """Return the classes of a package that have all these methods; protocols are left out."""
    classes = (
        part for part in public_parts(package) if inspect.isclass(part) and not getattr(part, "_is_protocol", False)
    )
    return {each for each in classes if all(hasattr(each, method) for method in methods)}


def cases(table: Mapping[Any, Sequence[Any]]) -> pytest.MarkDecorator:
    """Return the parametrisation over all cases of a table, named by the part."""
    named = [(f"{part.__name__}-{i}", case) for part, each in table.items() for i, case in enumerate(each)]
    return pytest.mark.parametrize("case", [case for _, case in named], ids=[name for name, _ in named])


# -- what the parts are given


def draw(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def network(dtype: torch.dtype) -> Model:
    return to(build("lenet_dlg", SHAPE, CLASSES, {"width": 2}), dtype=dtype)


HEAD = public_head(network(torch.float32))
FEATURES = network(torch.float32).parameters[HEAD.weight].shape[1]


def played(
    dtype: torch.dtype = torch.float32, samples: int = SAMPLES, local: LocalTraining | None = None
) -> tuple[Model, Observation, Knowledge, Batch]:
    model = network(dtype)
    inputs = torch.rand((TRIALS, samples, *SHAPE), generator=torch.Generator().manual_seed(0))
    labels = torch.randint(CLASSES, (TRIALS, samples), generator=torch.Generator().manual_seed(0))
    batch = make_batch(inputs.to(dtype), labels, classes=CLASSES)
    client = Client(local, scaling=SCALING)
    weights = to(draw_parameters(model, Torch(), KEYS), dtype=dtype)
    return (
        model,
        client.observe(model, weights, batch, SEEDS),
        attacker_knowledge(model, client, batch, labels=True),
        batch,
    )


def all_unknowns(dtype: torch.dtype) -> Tree:
    """Return every unknown that some part reads."""
    return {
        GUESS: draw(0, TRIALS, SAMPLES, *SHAPE, dtype=dtype),
        LABEL: draw(3, TRIALS, SAMPLES, CLASSES, dtype=dtype),
        ALPHA: draw(1, TRIALS, dtype=dtype).sigmoid(),
        SHIFT: 0.1 * draw(2, TRIALS, SAMPLES, 2, dtype=dtype),
        AFFINE: torch.eye(2, 3, dtype=dtype) + 0.1 * draw(4, TRIALS, SAMPLES, 2, 3, dtype=dtype),
        SIGNS: draw(5, TRIALS, SAMPLES, LONGEST, dtype=dtype).tanh(),
        CHOICE: draw(6, TRIALS, SAMPLES, len(POLICIES), dtype=dtype),
        COPIES: draw(7, TRIALS, LOCAL.epochs - 1, SAMPLES, *SHAPE, dtype=dtype),
        PULL: draw(8, TRIALS, SAMPLES, FEATURES, dtype=dtype),
        GROUP: draw(10, TRIALS, 2, SAMPLES, *SHAPE, dtype=dtype),
        THETA: 0.1 * draw(13, TRIALS, 100 * 2 * 16 + 2 + 2 + 2 * 3 * 16, dtype=dtype),  # of Generator(2)
        WEIGHT: 0.1 * draw(9, TRIALS, BITS, FEATURES, dtype=dtype),
        BIAS: 0.1 * draw(10, TRIALS, BITS, dtype=dtype),
        CODES: draw(11, TRIALS, CLASSES, BITS, dtype=dtype),
    }


def same(one: Any, other: Any, tolerance: float = 0.0) -> None:
    """Compare every tensor of two values, dtypes too."""
    assert_close(list(tensors(one)), list(tensors(other)), rtol=tolerance, atol=tolerance)


def untouched(f: Callable[..., Any], *arguments: Any) -> Any:
    """Return `f(*arguments)` after checking that it left its arguments alone and gives the same again."""
    before = copy.deepcopy(list(tensors(arguments)))
    generator = torch.get_rng_state()
    result = f(*arguments)
    same(list(tensors(arguments)), before)
    same(f(*arguments), result)
    assert torch.equal(torch.get_rng_state(), generator), "a part must not touch the global generator"
    return result


# -- starts, of the guess and of further unknowns

STARTS_OF: dict[Any, list[tuple[Any, tuple[int, ...]]]] = {
    Normal: [(Normal(), (SAMPLES, *SHAPE))],
    Uniform: [(Uniform(), (SAMPLES, *SHAPE))],
    Patterned: [(Patterned(), (SAMPLES, *SHAPE)), (Patterned(4), (SAMPLES, *SHAPE)), (Patterned(3), (SAMPLES, *SHAPE))],
    Solid: [(Solid(1.0), (SAMPLES, *SHAPE)), (Solid(channel=1), (SAMPLES, *SHAPE))],
    Insider: [(Insider(draw(9, TRIALS, SAMPLES, *SHAPE).sigmoid()), (SAMPLES, *SHAPE))],
    CopiesStart: [(CopiesStart(), (LOCAL.epochs - 1, SAMPLES, *SHAPE))],
    Constant: [(Constant(0.5), ())],
    Uncertain: [(Uncertain((4, 3), 0.1), (4, 3))],
    Zeros: [(Zeros(7), (SAMPLES, 7))],
    NoPulls: [(NoPulls(7), (SAMPLES, 7))],
    Others: [(Others(2), (2, SAMPLES, *SHAPE))],
    no_shift: [(no_shift, (SAMPLES, 2))],
    identity: [(identity, (SAMPLES, 2, 3))],
}
FITTED_OF: dict[Any, list[tuple[Any, tuple[int, ...]]]] = {
    Dummy: [
        (Dummy(WEIGHT, BITS), (BITS, FEATURES)),
        (Dummy(BIAS, BITS, 0.3), (BITS,)),
        (Dummy(CODES, BITS), (CLASSES, BITS)),
    ],
    NoPull: [(NoPull(), (SAMPLES, FEATURES))],
}


def test_every_start_has_a_case() -> None:
    assert of_kind("key: Tensor", "knowledge: Knowledge") == set(STARTS_OF)
    assert having(leakscope.attacks, "for_model") == set(FITTED_OF)


@cases(
    STARTS_OF | {fitted: [(c.for_model(network(torch.float32)), s) for c, s in e] for fitted, e in FITTED_OF.items()}
)
def test_a_start_gives_every_trial_its_unknown(case: tuple[Any, tuple[int, ...]]) -> None:
    start, shape = case
    knowledge = Knowledge(SHAPE, CLASSES, SAMPLES, scaling=SCALING, local=LOCAL)
    many = untouched(lift(lambda s, k: s(k, knowledge)), start, KEYS)
    assert many.shape == (TRIALS, *shape)
    assert many.is_floating_point()
    assert many.isfinite().all()
    for i in range(TRIALS):
        same(many[i], take(start, i)(KEYS[i], knowledge))


@pytest.mark.parametrize("name", ["normal", "uniform", "patterned", "patterned4"])
def test_a_random_start_differs_from_trial_to_trial_and_from_sample_to_sample(name: str) -> None:
    many = lift(lambda k: STARTS[name]()(k, Knowledge(SHAPE, CLASSES, SAMPLES)))(KEYS)
    flat = many.flatten(0, 1).flatten(1)
    assert torch.unique(flat, dim=0).shape[0] == TRIALS * SAMPLES


@pytest.mark.parametrize("name", sorted(set(STARTS) - {"normal"}))
def test_a_start_in_picture_space_lies_in_the_valid_box(name: str) -> None:
    knowledge = Knowledge(SHAPE, CLASSES, SAMPLES, scaling=SCALING)
    start = STARTS[name]()(KEYS[0], knowledge)
    assert_close(SCALING.clamp(start, 3), start, rtol=1e-6, atol=1e-6)


# -- distances


def test_every_distance_is_in_its_table() -> None:
    assert of_kind("simulated: Tree", "observed: Tree") == set(DISTANCES.values())


@DTYPES
@pytest.mark.parametrize("name", sorted(DISTANCES))
def test_a_distance_is_one_number_per_trial(name: str, dtype: torch.dtype) -> None:
    a = {"w": draw(0, TRIALS, 3, 2, dtype=dtype), "b": draw(1, TRIALS, 4, dtype=dtype)}
    b = {"w": draw(2, TRIALS, 3, 2, dtype=dtype), "b": draw(3, TRIALS, 4, dtype=dtype)}
    many = untouched(lift(DISTANCES[name]), a, b)
    assert many.shape == (TRIALS,)
    assert many.dtype == dtype
    for i in range(TRIALS):
        same(many[i], DISTANCES[name](take(a, i), take(b, i)), 1e-6)


@pytest.mark.parametrize("name", sorted(DISTANCES))
def test_a_distance_does_not_care_for_the_order_of_names(name: str) -> None:
    a, b = ({"w": draw(s, 3, 2), "b": draw(s + 1, 4)} for s in (0, 5))
    turned = {n: b[n] for n in reversed(b)}
    same(DISTANCES[name](a, turned), DISTANCES[name](a, b), 1e-6)


# -- objectives and priors: one number of a View

WEIGHTS = (0.5, torch.tensor([0.0, 0.5, 2.0]))
OBJECTIVES_OF: dict[Any, list[Any]] = {
    Match: [
        Match(),
        Match(cosine),
        Match(weights=(("b", 3.0),), gain=2.0),
    ],
    Sent: [Sent()],
    LargestSent: [LargestSent()],
    Clipped: [Clipped()],
    Rounded: [Rounded(), Rounded(pull=0.1)],
    Whitened: [Whitened()],
    Scaled: [Scaled(), Scaled(gain=2.0), Scaled(gain=PerGradient())],
    InNoiseUnits: [InNoiseUnits(slack=0.1)],
    LayerMatch: [LayerMatch(), LayerMatch((0.1, 10.0), 20)],
    OnSimulated: [OnSimulated()],
    EachMember: [EachMember(), EachMember(TotalVariation())],
    TagMatch: [TagMatch(), TagMatch(0.5)],
    FeatureMatch: [FeatureMatch(draw(9, TRIALS, SAMPLES, FEATURES), gradient) for gradient in (0.0, 0.5)],
    silent: [silent],
}
PRIORS_OF: dict[Any, list[Any]] = {
    TotalVariation: [
        *(TotalVariation(weight) for weight in WEIGHTS),
        TotalVariation(0.5, power=2, scale=0.5, circular=True, total=True),
    ],
    LabelRegulariser: [LabelRegulariser(weight) for weight in WEIGHTS],
    Norm: [Norm(weight) for weight in WEIGHTS],
    BoxPenalty: [BoxPenalty(weight) for weight in WEIGHTS],
    OpponentVariation: [OpponentVariation(weight) for weight in WEIGHTS],
    Langevin: [Langevin(weight) for weight in WEIGHTS],
    BatchStatistics: [BatchStatistics(weight) for weight in WEIGHTS],
    HeadFeatures: [HeadFeatures(weight) for weight in WEIGHTS],
    PositionGradient: [PositionGradient("w", weight) for weight in WEIGHTS],
    RowLength: [RowLength(weight) for weight in WEIGHTS],
    GroupConsistency: [GroupConsistency(weight) for weight in WEIGHTS],
    OutOfRange: [OutOfRange(weight) for weight in WEIGHTS],
    OrderInvariant: [OrderInvariant(), *(OrderInvariant(weight, "features", filters=4) for weight in WEIGHTS)],
    EveryCopy: [EveryCopy(TotalVariation(weight, total=True)) for weight in WEIGHTS],
}


def test_every_objective_and_prior_has_a_case() -> None:
    readers = {bound_of, dtype_of, length_in, sent_coordinates, unit_of}  # they read a View and are no objective
    assert of_kind("view: View") - readers == set(OBJECTIVES_OF) | set(PRIORS_OF)
    assert set(PRIORS.values()) <= set(PRIORS_OF)


def all_facts(observed: Tree, dtype: torch.dtype) -> Knowledge:
    """Return what an attacker knows who is told of every defence on the update."""
    return Knowledge(
        SHAPE,
        CLASSES,
        SAMPLES,
        scaling=SCALING,
        local=LOCAL,
        mask={name: (value > 0).to(dtype) for name, value in observed.items()},
        bound=torch.tensor([0.5, 1.0, 2.0], dtype=dtype),
        bits=torch.tensor([2, 3, 8]),
        sigma=torch.tensor([0.1, 0.2, 0.3], dtype=dtype),
        sigma_each={name: torch.full((TRIALS,), 0.1 * (i + 1), dtype=dtype) for i, name in enumerate(observed)},
    )


@DTYPES
@cases(OBJECTIVES_OF | PRIORS_OF)
def test_an_objective_or_prior_is_one_number_per_trial(case: Any, dtype: torch.dtype) -> None:
    part = to(case, dtype=dtype)
    update, observed = (
        {"w": draw(s, TRIALS, 3, 2, dtype=dtype), "b": draw(s + 1, TRIALS, 4, dtype=dtype)} for s in (20, 30)
    )
    observed["b"][:, 0] = 0.0
    output, targets = draw(1, TRIALS, SAMPLES, CLASSES, dtype=dtype), torch.zeros(TRIALS, SAMPLES, CLASSES, dtype=dtype)
    clock = Clock(torch.tensor([0, 3, 9]), KEYS)
    knowledge = all_facts(observed, dtype)
    unknowns = {name: 3 * value for name, value in all_unknowns(dtype).items()}
    features = draw(8, TRIALS, SAMPLES, FEATURES, dtype=dtype)
    entering = (Entering(HEAD, features, torch.ones(TRIALS, SAMPLES, dtype=dtype)),)
    simulated = Simulated(update, output, targets, entering)
    view = View(unknowns, simulated, observed, played(dtype)[1].rounds[0], knowledge, clock)
    many = untouched(lift(lambda p, v: p(v)), part, view)
    assert many.shape == (TRIALS,)
    assert many.dtype == dtype
    assert many.isfinite().all()
    assert (many >= 0).all()
    for i in range(TRIALS):
        same(many[i], take(part, i)(take(view, i)), 1e-5)


# -- label rules


def test_every_label_rule_is_in_its_table() -> None:
    rules = of_kind("model: Model", "observation: Observation", "knowledge: Knowledge", "key: Tensor")
    assert rules == set(LABEL_RULES.values())


@DTYPES
@pytest.mark.parametrize("local", [None, LocalTraining(epochs=2, rate=0.05)], ids=["gradient", "weights"])
@pytest.mark.parametrize("name", sorted(LABEL_RULES))
def test_a_label_rule_names_a_class_for_every_sample(
    name: str, local: LocalTraining | None, dtype: torch.dtype
) -> None:
    model, seen, knowledge, _ = played(dtype, 1 if name in ("idlg", "cpl") else 4, local)
    rule = LABEL_RULES[name]
    many = untouched(lambda s, k, keys: rule(model, s, k, keys), seen, knowledge, KEYS)
    assert many.shape == (TRIALS, knowledge.samples)
    assert many.dtype == torch.int64
    assert ((many >= 0) & (many < CLASSES)).all()
    for i in range(TRIALS):
        one = slice(i, i + 1)
        same(rule(model, *take((seen, knowledge, KEYS), one)), many[one])


@pytest.mark.parametrize("name", sorted(set(LABEL_RULES) - {"known"}))
def test_a_label_rule_reads_and_is_not_told(name: str) -> None:
    model, seen, knowledge, batch = played(samples=1)
    wrong = replace(knowledge, labels=(batch.labels + 1) % CLASSES)
    same(LABEL_RULES[name](model, seen, wrong, KEYS), batch.labels)


# -- simulators, each with the unknowns it reads beside guess and labels

SIGNS_DRAWN = draw(12, TRIALS, SAMPLES, LONGEST).sign()
CHOSEN = torch.eye(len(POLICIES))[torch.tensor([[0, 1], [1, 1], [0, 0]])]
SIMULATORS_OF: dict[Any, list[tuple[Any, set[str]]]] = {
    OneGradient: [(OneGradient(), set())],
    OnTheLine: [(OnTheLine(OneGradient()), {ALPHA}), (OnTheLine(ThroughMap()), {ALPHA, SHIFT})],
    LocalSteps: [(LocalSteps(), set()), (LocalSteps(segment=2), set())],
    EpochCopies: [(EpochCopies(), {COPIES}), (EpochCopies(LocalSteps(segment=0)), {COPIES})],
    ThroughMap: [
        (ThroughMap(), {SHIFT}),
        (ThroughMap(Moved(AFFINE)), {AFFINE}),
        (ThroughMap(inner=LocalSteps()), {SHIFT}),
    ],
    ThroughPolicy: [
        (ThroughPolicy(POLICIES), {SIGNS, CHOICE}),
        (ThroughPolicy(POLICIES, SIGNS_DRAWN, CHOSEN), set()),
    ],
    KnownDropout: [(KnownDropout(KEYS), set())],
    Watched: [(Watched(), set())],
    LayerInput: [(LayerInput(HEAD, OneGradient()), set())],
    Embedded: [(Embedded(OneGradient(), torch.tensor([0.5, 1.0, 2.0])), set())],
    InGroup: [(InGroup(), set())],
    ThroughGenerator: [(ThroughGenerator(Generator(2)), {THETA})],
    AveragedDropout: [(AveragedDropout(2), set())],
    DummyPolarised: [(DummyPolarised(), {WEIGHT, CODES})],  # the loss has steps in the bias
    HeadGradient: [(HeadGradient(), set()), (HeadGradient(torch.tensor([0.5, 1.0, 2.0])), set())],
    Pulled: [(Pulled(), {PULL})],
    simulate_nothing: [(simulate_nothing, set())],
}
PARTIAL = (HeadGradient, type(simulate_nothing))  # simulate no parameter but those of the head, or none


def test_every_simulator_has_a_case() -> None:
    parameters = ("model: Model", "unknowns: Tree", "seen: Round", "knowledge: Knowledge", "clock: Clock")
    assert of_kind(*parameters) == set(SIMULATORS_OF)
    assert set(SIMULATORS.values()) <= set(SIMULATORS_OF)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@DTYPES
@pytest.mark.parametrize("joint", [False, True], ids=["known labels", "joint labels"])
@cases(SIMULATORS_OF)
def test_a_simulator_gives_every_trial_an_update_like_the_one_it_saw(
    case: tuple[Any, set[str]], joint: bool, dtype: torch.dtype
) -> None:
    model, seen, knowledge, _ = played(dtype, local=LOCAL)
    simulate, first, unknowns = to(case[0], dtype=dtype), seen.rounds[0], all_unknowns(dtype)
    if joint:
        knowledge = replace(knowledge, labels=None)
    else:
        del unknowns[LABEL]
    clock = Clock(torch.tensor([0, 3, 9]), KEYS)
    many = untouched(lift(lambda s, u, r, k, c: s(model, u, r, k, c)), simulate, unknowns, first, knowledge, clock)
    shapes = {name: (value.shape, dtype) for name, value in first.sent.items()}
    simulated = {name: (value.shape, value.dtype) for name, value in many.update.items()}
    assert simulated.items() <= shapes.items()
    assert simulated == shapes or isinstance(simulate, PARTIAL)
    assert many.output.shape == many.targets.shape == (TRIALS, SAMPLES, CLASSES)
    assert_close(many.targets.sum(-1), torch.ones(TRIALS, SAMPLES, dtype=dtype))
    tolerance = 1e-10 if dtype == torch.float64 else 1e-4
    for i in range(TRIALS):
        alone = take(simulate, i)(model, *take((unknowns, first, knowledge, clock), i))
        same(alone, take(many, i), tolerance)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@cases(SIMULATORS_OF)
def test_a_simulator_has_a_finite_derivative_in_every_unknown_it_reads(case: tuple[Any, set[str]]) -> None:
    model, seen, knowledge, _ = played(torch.float64, local=LOCAL)
    simulate = to(case[0], dtype=torch.float64)
    reads = case[1] | (set() if simulate is simulate_nothing else {GUESS, LABEL})

    def mismatch(unknowns: Tree, simulate: Any, seen: Any, knowledge: Knowledge, key: Tensor) -> Tensor:
        update = simulate(model, unknowns, seen, knowledge, Clock(torch.tensor(0), key)).update
        return squared_l2(update, {name: seen.sent[name] for name in update}) if update else key.new_zeros(()).double()

    unknowns = all_unknowns(torch.float64)
    slope = lift(torch.func.grad(mismatch))(unknowns, simulate, seen.rounds[0], knowledge, KEYS)
    assert all(bool(value.isfinite().all()) for value in slope.values())
    for unknown, value in slope.items():
        assert bool((value.reshape(TRIALS, -1).abs().amax(1) > 0).all()) is (unknown in reads), unknown


# -- projections and finishes: all trials at once

PROJECTIONS_OF: dict[Any, list[tuple[Any, str]]] = {
    into_box: [(into_box, GUESS)],
    Interval: [(Interval(0.0, 0.5), ALPHA)],
    Within: [(Within(0.05, 0.1), SHIFT), (Within(torch.tensor([0.01, 0.1, 1.0]), 0.1), SHIFT)],
    NearIdentity: [(NearIdentity(Within(0.05, 0.1), 0.05), AFFINE)],
}
FINISHES_OF: dict[Any, list[Any]] = {
    AddSeen: [AddSeen(Moved()), AddSeen(Moved(AFFINE))],
    AddTransformed: [AddTransformed(POLICIES), AddTransformed(POLICIES, SIGNS_DRAWN, CHOSEN)],
    average_copies: [average_copies],
    mean_member: [mean_member],
    Generated: [Generated(Generator(2))],
}


def test_every_projection_and_finish_has_a_case() -> None:
    assert of_kind("value: Tensor", "knowledge: Knowledge") == set(PROJECTIONS_OF)
    assert of_kind("unknowns: Tree", "knowledge: Knowledge") == set(FINISHES_OF)


@DTYPES
@cases(PROJECTIONS_OF)
def test_a_projection_keeps_what_is_allowed(case: tuple[Any, str], dtype: torch.dtype) -> None:
    project, value = to(case[0], dtype=dtype), all_unknowns(dtype)[case[1]]
    knowledge = Knowledge(SHAPE, CLASSES, SAMPLES, scaling=SCALING)
    allowed = untouched(lambda v: project(v, knowledge), value)
    assert (allowed.shape, allowed.dtype) == (value.shape, dtype)
    assert not torch.equal(allowed, value)
    same(project(allowed, knowledge), allowed, 1e-6)
    for i in range(TRIALS):
        one = slice(i, i + 1)
        same(take(project, one)(value[one], knowledge), allowed[one])


@cases(FINISHES_OF)
def test_a_finish_keeps_the_unknowns_of_every_trial(case: Any) -> None:
    unknowns = all_unknowns(torch.float32)
    knowledge = Knowledge(SHAPE, CLASSES, SAMPLES, scaling=SCALING, local=LOCAL)
    finished = untouched(lambda f, u: f(u, knowledge), case, unknowns)
    assert set(unknowns) <= set(finished)
    assert finished[GUESS].shape == unknowns[GUESS].shape
    for i in range(TRIALS):
        one = slice(i, i + 1)
        same(take(case, one)(take(unknowns, one), knowledge), take(finished, one), 1e-5)


# -- defences on the update

DEFENCES_OF: dict[Any, list[Any]] = {
    GaussianNoise: [GaussianNoise(0.1), GaussianNoise(0.1, each=True), GaussianNoise(torch.tensor([0.0, 0.1, 1.0]))],
    LaplaceNoise: [LaplaceNoise(0.1), LaplaceNoise(scale=torch.tensor([0.1, 0.2, 0.3]), each=True)],
    Clip: [Clip(0.5), Clip(torch.tensor([0.1, 1.0, 100.0]), each=True)],
    Sparsify: [Sparsify(0.5), Sparsify(share=torch.tensor([0.1, 0.5, 1.0])), Sparsify(0.5, each=True)],
    DeepCompression: [DeepCompression(0.5)],
    RandomMask: [RandomMask(0.5), RandomMask(torch.tensor([0.1, 0.5, 0.9]))],
    ChosenNoise: [ChosenNoise(0.1), ChosenNoise(torch.tensor([0.0, 0.1, 1.0]))],
    Sign: [Sign()],
    Quantise: [Quantise(4), Quantise(1), Quantise(4, stochastic=False)],
    LowRank: [LowRank(1)],
    DropRows: [DropRows(("w",)), DropRows(("w", "b"), 0.9)],
}


def protect_twice(defence: Any, update: Tree, key: Tensor) -> tuple[Tree, Tree]:
    """Return what two rounds send of the same update, memory included."""
    once, state = protect((defence,), update, begin((defence,), update), key)
    return once, protect((defence,), update, state, random.fold(key, "next"))[0]


def test_every_defence_has_a_case_and_is_in_its_table() -> None:
    on_update = having(leakscope.defences, "protect_update") | having(leakscope.defences, "protect_and_remember")
    named = {DropRows}  # it needs the names of a model's tensors, so a file cannot name it alone
    assert on_update == {*DEFENCES.values(), *named} == set(DEFENCES_OF)


@DTYPES
@cases(DEFENCES_OF)
def test_a_defence_sends_an_update_like_the_one_it_got(case: Any, dtype: torch.dtype) -> None:
    defence = to(case, dtype=dtype)
    update = {"w": draw(0, TRIALS, 4, 3, dtype=dtype), "b": draw(1, TRIALS, 5, dtype=dtype)}
    many = untouched(lift(protect_twice), defence, update, KEYS)
    for sent in many:
        assert {name: (v.shape, v.dtype) for name, v in sent.items()} == {
            name: (v.shape, v.dtype) for name, v in update.items()
        }
        assert all(value.isfinite().all() for value in sent.values())
    for i in range(TRIALS):  # no client depends on the others
        same(take(many, i), protect_twice(take(defence, i), take(update, i), KEYS[i]), 1e-5)


@cases(DEFENCES_OF)
def test_a_defence_treats_two_clients_of_one_seed_and_update_alike(case: Any) -> None:
    defence = take(case, torch.tensor([1, 1]))
    update = {"w": draw(0, 4, 3).expand(2, 4, 3), "b": draw(1, 5).expand(2, 5)}
    sent = lift(protect_twice)(defence, update, KEYS[:1].expand(2))
    same(take(sent, 0), take(sent, 1))


# -- metrics: one value per item


def test_every_metric_is_in_its_table() -> None:
    public = {
        part
        for part in public_parts(leakscope.metrics)
        if inspect.isfunction(part)
        and signature_of(part)[:2] == ("truth: Tensor", "guess: Tensor")
        and part.__annotations__["return"] == "Tensor"
    }
    assert public - {match, label_correct, label_overlap} == {metric.function for metric in METRICS.values()}


@DTYPES
@pytest.mark.parametrize(
    "metric", [metric for metric in METRICS.values() if isinstance(metric, Metric)], ids=lambda m: m.name
)
@pytest.mark.parametrize("shape", [(1, 12, 12), (3, 16, 16), (30,)], ids=["grey", "colour", "row"])
def test_a_metric_is_best_for_the_truth_and_judges_every_item_by_itself(
    metric: Metric, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    if len(shape) == 1 and not metric.tables:
        pytest.skip("a metric of images")
    truth = draw(0, 6, *shape, dtype=dtype).sigmoid()
    near, far = ((truth + size * draw(1, 6, *shape, dtype=dtype)).clamp(0, 1) for size in (0.01, 0.2))
    assert_close(untouched(metric.function, truth, truth.clone()).double(), torch.full((6,), metric.best).double())
    values = untouched(metric.function, truth, near)
    assert values.shape == (6,)
    assert values.isfinite().all()
    better = values < metric.function(truth, far)
    assert bool((better if metric.direction is Direction.LOWER else ~better).all())
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    same(metric.function(truth[order], near[order]), values[order], 1e-5)
    if metric.symmetric:
        same(metric.function(near, truth), values, 1e-5)


# -- tables


def test_every_recipe_is_in_its_table() -> None:
    attacks = having(leakscope.attacks, "run", "name")
    returned = {each.__name__ for each in attacks} | {"Attack"}
    recipes = {
        part
        for part in public_parts(leakscope.attacks)
        if inspect.isfunction(part)
        and getattr(part.__annotations__.get("return"), "__name__", part.__annotations__.get("return")) in returned
        and all(p.default is not p.empty for p in inspect.signature(part).parameters.values())
    }
    assert recipes == {*ATTACKS.values(), *TEXT_ATTACKS.values()}
    assert all(getattr(leakscope.attacks, name) is make for name, make in (ATTACKS | TEXT_ATTACKS).items())
    assert all(getattr(leakscope.attacks, each.__name__) is each for each in attacks)


def test_every_optimiser_is_in_its_table() -> None:
    assert having(leakscope.attacks, "settle", "move") == set(OPTIMISERS.values())


@pytest.mark.parametrize(
    "part", sorted({*STARTS_OF, *OBJECTIVES_OF, *PRIORS_OF, *SIMULATORS_OF, *PROJECTIONS_OF}, key=str)
)
def test_a_user_finds_every_part_in_the_room(part: Any) -> None:
    internal = {Zeros, NoPulls, Uncertain, no_shift, identity, silent, simulate_nothing}
    assert (getattr(leakscope.attacks, part.__name__, None) is part) is (part not in internal)


@pytest.mark.parametrize("table", [DISTANCES, PRIORS, LABEL_RULES, SIMULATORS, OPTIMISERS, DEFENCES])
def test_every_part_says_in_one_line_what_it_is(table: dict[str, Any]) -> None:
    assert all(len(summary(part)) > 10 for part in table.values())
