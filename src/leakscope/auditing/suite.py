"""The fixed suite of an audit: which attacks are run on which client, and why others cannot be.

| part | when |
|---|---|
| analytic | the first layer is dense with a bias, whatever the loss; also informed, if a client of one example sends a part of its update |
| analytic, peeling, cpa | also where the first dense layer reads the input behind a fixed scaling, as after normalisation in `forward` |
| peeling | the same, for clients of several examples under a loss that it simulates; SPEAR unmixes what division leaves |
| cpa | the first layer is dense and has no bias, or no unit of it is silent (tanh, GELU) and clients have several examples |
| feature inversion | images, the first layer is not dense, and a trained dense layer with a bias lies behind others |
| label recovery | the model ends in a dense layer and the loss is cross entropy |
| CPL, IG | always, if the model has a second derivative; under a caller's own loss they search the targets too |
| the same, knows the targets | under a caller's own loss: an upper bound for attackers who do not know them |
| SME | the client takes several local steps |
| the same, informed | a configured defence (on the update, the data or the network) that an attacker can be informed of |
| ig_policy | images are transformed (`on_data`), with few enough possible draws to try them all |
| spn_aware | the client has a private head (`on_model`) |
| analytic and peeling, all rounds | captures hold several rounds of a client (`capture_rounds`) |
| null baselines | always prior only; class mean and nearest public image if the sample has examples to spare |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

from leakscope.attacks.attack import Attack, Matching
from leakscope.attacks.aware import aware
from leakscope.attacks.cpa import cpa
from leakscope.attacks.exact.analytic import Analytic
from leakscope.attacks.exact.layer_probe import feature_layer, makes_zeros
from leakscope.attacks.exact.peel_attack import Peeling
from leakscope.attacks.exact.scaled_entry import AtScaledEntry, read_scaled_entry
from leakscope.attacks.feature_inversion import feature_inversion
from leakscope.attacks.known_policy import KnownPolicy, ways
from leakscope.attacks.labels import JOINT
from leakscope.attacks.recipes import ATTACKS
from leakscope.clients import Client
from leakscope.core.errors import InputError
from leakscope.core.model import Dense, Model
from leakscope.core.types import IMAGE_RANK, Knowledge, Observation, Shares, direction
from leakscope.defences.stack import unrevealed
from leakscope.learning.losses import LOSSES, UserLoss
from leakscope.models import unfrozen

FEATURES = "feature_inversion"  # has no variant that knows a defence
PUBLISHED = {"cpl": 300, "ig": 4800, "sme": 1000, FEATURES: 1000}
TV_WEIGHTS = (1e-4, 1e-2, 0.1)  # that ig tries; the smallest mismatch to the update decides (benchmarks/tv_weights.py)
BN = 1e-3  # weight of batch norm's statistics where clients send them
INFORMED = "knows the defences"
TARGETS = "knows the targets"
ALL_ROUNDS = ", all rounds"  # of a client at once
UNKNOWN = "no attack uses knowledge of it"
SPECIALISED = ("ig_policy", "spn_aware")  # attacks designed against a defence on the data or the network


@dataclass(frozen=True, slots=True)
class Entry:
    """One attack of the suite. `make(iterations)` builds it; `most` is the number its authors use (None: not iterative)."""

    name: str
    make: Callable[[int], Attack]
    most: int | None
    informed: bool = False
    knows_targets: bool = False  # of a caller's own loss
    own: bool = False  # chosen by the user, beside the suite


@dataclass(frozen=True, slots=True)
class Untested:
    """What was left out, and why."""

    what: str
    why: str
    left_out: bool = False  # of the suite, by the user: no good grade is given without it
    failed: bool = False  # it applies, and raised an error: no good grade either


def plan_suite(
    model: Model,
    knowledge: Knowledge,
    informed: Knowledge | None,  # of an attacker who knows the defences
    *,
    steps: int | None,  # number of local steps; None: unknown
    shares: Shares,
    unmatched: str | None = None,  # why no attack can match updates of this model
    unknown: Sequence[str] = (),  # defences that no attacker can be informed of
    targets: bool = False,  # whether the targets of a caller's own loss are at hand, for an attacker who knows them
    buffers: bool = False,  # whether clients send their buffers: ig then uses the statistics of batch norm
) -> tuple[list[Entry], list[Untested]]:
    """Return the attacks to run, cheapest first, and what cannot be run."""
    entries: list[Entry] = []
    untested = [Untested(f"an attacker who {INFORMED}: {name}", UNKNOWN) for name in unknown]
    if not knows_more(knowledge, informed):
        informed = None
    scaled = read_scaled_entry(model, knowledge.scaling)
    read = model if scaled is None else scaled.network
    if (problem := division_problem(read)) is None:
        entries += _algebra(knowledge, informed)
    else:
        untested.append(Untested("analytic", problem))
    entries += _beyond_division(read, knowledge, divides=problem is None)
    if scaled is not None:
        entries = [replace(entry, make=_at_scaled_entry(entry.make)) for entry in entries]
    names = ["cpl", "ig", "sme"] if shares is Shares.WEIGHTS and steps != 1 else ["cpl", "ig"]
    if shares is Shares.WEIGHTS and knowledge.local is None:
        names.remove("cpl")
        untested.append(Untested("cpl", "it compares lengths, and the learning rate is not known"))
    if unmatched is not None:
        untested += [Untested(name, unmatched) for name in names]
        names = []
    settings = replace(_settings(model, knowledge, shares), statistics=buffers and bool(model.norms))
    variants = dict.fromkeys(names, settings)
    if isinstance(knowledge.loss, UserLoss) and knowledge.labels is None:
        variants, unsearched = _target_variants(knowledge.loss, names, settings, targets=targets)
        untested += unsearched
    for name, chosen in variants.items():
        recipe = name.removesuffix(f", {TARGETS}")
        entry = Entry(name, _maker(recipe, chosen, None), PUBLISHED[recipe], knows_targets=recipe != name)
        entries.append(entry)
        if informed is None:
            continue
        try:
            aware(_recipe(recipe, 1, chosen), informed)
        except InputError as error:
            untested.append(Untested(f"{name}, {INFORMED}", str(error)))
            continue
        entries.append(
            replace(entry, name=f"{name}, {INFORMED}", make=_maker(recipe, chosen, informed), informed=True)
        )  # fmt: skip
    if informed is not None and unmatched is None:
        entries += _specialised(informed, settings)
    return entries, untested


def _target_variants(
    loss: UserLoss, names: Sequence[str], settings: _Settings, *, targets: bool
) -> tuple[dict[str, _Settings], list[Untested]]:
    """Return the settings of attacks that search the targets of a caller's own loss and of those that know them, by name."""
    untested = []
    if loss.targets is None:
        why = f"the targets cannot be searched under {loss}: {loss.reason}"
        untested = [Untested(name, why) for name in names]
    variants: dict[str, _Settings] = {}
    for name in names:
        if loss.targets is not None:
            variants[name] = settings
        if targets:
            variants[f"{name}, {TARGETS}"] = replace(settings, labels="known")
    return variants, untested


def division_problem(model: Model) -> str | None:
    """Return why no unit's weight gradient can be divided by its bias gradient; None if it can."""
    entry = model.entry
    if entry is not None and entry.bias is not None:
        return "the first layer stays at the client" if {entry.weight, entry.bias} & model.private else None
    trained = unfrozen(model).entry
    if trained is None:
        return "the model does not begin with a dense layer"
    if frozen := _frozen(model, trained):
        return f"the first layer is dense, but not in the update: {frozen}"
    return f"the first layer is dense, but {trained.weight} has no bias to be divided by; cpa needs none"


def _at_scaled_entry(make: Callable[[int], Attack]) -> Callable[[int], Attack]:
    return lambda iterations: AtScaledEntry(make(iterations))


def _frozen(model: Model, layer: Dense) -> str:
    """Return which parameters of a layer are frozen, in words; empty without one."""
    names = [name for name in (layer.weight, layer.bias) if name is not None and name not in model.parameters]
    return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} frozen" if names else ""


def _algebra(knowledge: Knowledge, informed: Knowledge | None) -> list[Entry]:
    """Return the exact attacks: division, peeling for batches, and division that knows which coordinates of one example were sent."""
    entries = [Entry("analytic", lambda _: Analytic(), None)]
    if knowledge.samples > 1 and knowledge.loss in LOSSES:
        entries.append(Entry("peeling", lambda _: Peeling(), None))
    if informed is not None and informed.mask is not None and informed.samples == 1:
        entries.append(Entry(f"analytic, {INFORMED}", lambda _: Analytic(), None, informed=True))
    return entries


def _beyond_division(model: Model, knowledge: Knowledge, *, divides: bool) -> list[Entry]:
    """Return the attacks on dense layers where no sample has a unit alone, and behind other layers."""
    entry = model.entry
    if knowledge.loss not in LOSSES:
        return []
    if entry is not None and not {entry.weight, entry.bias} & model.private:
        unmixes = entry.bias is None or (knowledge.samples > 1 and not makes_zeros(model, entry))
        return [Entry("cpa", lambda _: cpa(), None)] if unmixes else []
    if divides or len(knowledge.input_shape) < IMAGE_RANK or feature_layer(model) is None:
        return []
    return [Entry(FEATURES, lambda iterations: feature_inversion(iterations=iterations), PUBLISHED[FEATURES])]


def is_informed(name: str) -> bool:
    """Return whether an attack of the suite, by its name, knows the defences."""
    return name.endswith(f", {INFORMED}") or name in SPECIALISED


def unknown_defences(client: Client, observation: Observation) -> list[str]:
    """Return the names of the update defences that no attacker can be informed of."""
    update = direction(observation.rounds[0], observation.shares)
    return [type(defence).__name__ for defence in unrevealed(client.defences, update)]


def knows_more(knowledge: Knowledge, informed: Knowledge | None) -> bool:
    """Return whether there is an informed attacker who knows more: not where a defence reveals nothing."""
    if informed is None:
        return False
    pairs = [(getattr(knowledge, each.name), getattr(informed, each.name)) for each in fields(Knowledge)]
    return not all(known is more or (known is None and more == ()) for known, more in pairs)


def _specialised(informed: Knowledge, settings: _Settings) -> list[Entry]:
    """Return the attacks designed against a defence on the data or the network."""
    entries: list[Entry] = []
    if informed.policies and ways(informed.policies, informed.samples) is not None:  # else ig learns the draws
        entries.append(Entry("ig_policy", _through_policy(settings, informed), PUBLISHED["ig"], informed=True))
    if informed.private_head is not None:
        entries.append(Entry("spn_aware", _dummy_head(settings, informed), PUBLISHED["cpl"], informed=True))
    return entries


def _through_policy(settings: _Settings, informed: Knowledge) -> Callable[[int], Attack]:
    def make(iterations: int) -> Attack:
        given: dict[str, object] = {"iterations": iterations, "labels": settings.labels}
        attack = ATTACKS["ig_policy"](**given)
        if not isinstance(attack, KnownPolicy):
            raise TypeError("ig_policy is no attack through a policy")
        return replace(attack, base=aware(attack.base, replace(informed, policies=None)))

    return make


def _dummy_head(settings: _Settings, informed: Knowledge) -> Callable[[int], Attack]:
    head = {name: float(value.double().mean()) for name, value in (informed.private_head or {}).items()}

    def make(iterations: int) -> Attack:
        given: dict[str, object] = {"iterations": iterations, "labels": settings.labels}
        given |= {**head, "bits": round(head["bits"])}
        attack = ATTACKS["spn_aware"](**given)
        if not isinstance(attack, Matching):
            raise TypeError("spn_aware is no matching attack")
        return aware(attack, informed)

    return make


@dataclass(frozen=True, slots=True)
class _Settings:
    """Recipe settings that depend on the model: the label rule, whether inputs are images, whether batch statistics are sent."""

    labels: str
    pictures: bool
    statistics: bool = False


def _settings(model: Model, knowledge: Knowledge, shares: Shares) -> _Settings:
    labels = "auto" if labels_problem(model, knowledge, shares) is None or knowledge.labels is not None else JOINT
    return _Settings(labels, len(knowledge.input_shape) >= IMAGE_RANK)


def labels_problem(model: Model, knowledge: Knowledge, shares: Shares) -> str | None:
    """Return why no rule can read the labels off the update; None if one can."""
    head = model.head
    if head is None:
        trained = unfrozen(model).head
        frozen = "" if trained is None else _frozen(model, trained)
        return (
            f"the last layer is dense, but not in the update: {frozen}"
            if frozen
            else "the model does not end in a dense layer"
        )
    if knowledge.loss != "cross_entropy":
        return f"the loss is {knowledge.loss}; the rules read cross_entropy of one class an example"
    if {head.weight, head.bias} & model.private:
        return "the last layer stays at the client"
    if head.bias is None and not head.nonnegative:
        return "the last layer has no bias and its features may be negative"
    if shares is Shares.WEIGHTS and knowledge.local is None and knowledge.samples > 1:
        return "counting labels needs the learning rate and the number of steps"
    return None


def _recipe(name: str, iterations: int, settings: _Settings) -> Matching:
    given: dict[str, object] = {"iterations": iterations, "labels": settings.labels}
    if name != "cpl" and not settings.pictures:
        given["tv"] = 0.0  # columns of a table have no spatial order
    if name == "ig":
        given |= {"bn": BN} if settings.statistics else {}
    attack = ATTACKS[name](**given)
    if not isinstance(attack, Matching):
        raise TypeError(f"{name} is no matching attack")
    return replace(attack, tv_weights=TV_WEIGHTS) if name == "ig" and settings.pictures else attack


def _maker(name: str, settings: _Settings, informed: Knowledge | None) -> Callable[[int], Attack]:
    def make(iterations: int) -> Attack:
        attack = _recipe(name, iterations, settings)
        return attack if informed is None else aware(attack, informed)

    return make
