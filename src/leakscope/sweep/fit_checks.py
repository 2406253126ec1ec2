"""Checks of a cell: whether its parts are valid, then whether its attack suits its client. Each problem names its field."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence

import torch

from leakscope.attacks.attack import Matching
from leakscope.attacks.known_policy import KnownPolicy
from leakscope.attacks.labels import JOINT, check_head, chosen_rule
from leakscope.attacks.objectives import compares_lengths
from leakscope.attacks.priors import TotalVariation
from leakscope.attacks.simulate import LocalSteps, OnTheLine, simulator_kinds
from leakscope.attacks.tokens.token_attacks import TokenMatching
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.plugins import until_registration
from leakscope.data import Dataset, Part
from leakscope.defences import Sign
from leakscope.metrics import METRICS, ContextMetric, score, trial_means
from leakscope.models import MODELS, TEXT_MODELS
from leakscope.models.checkpoint import Checkpoint, check_scaling
from leakscope.play import shared_weights
from leakscope.scenario.cell import CellSettings, ModelChoice
from leakscope.scenario.problems import Problem
from leakscope.servers.manipulation import Manipulation, check_clients, dishonest_weights
from leakscope.sweep.objects import data_of, insider_misfits, mixed_batches, model_text, network_of, public_images
from leakscope.sweep.text_checks import text_misfits

ONE_EXAMPLE = ("idlg", "cpl")
MOST_PARAMETERS = 500_000_000
LEAST_PUBLIC = 8  # of a dishonest server
MOST_PUBLIC = 2**29  # numbers of public images that baselines hold at once: 2 GiB


class MisfitError(InputError):
    """A problem that appears only when a cell runs; `cell` is its id, for finding the line in the file."""

    def __init__(self, problem: Problem, cell: str) -> None:
        """Store the problem; the text is its message."""
        super().__init__(problem.message)
        self.problem, self.cell = problem, cell

    def __reduce__(self) -> tuple[type[MisfitError], tuple[Problem, str]]:
        """Return how to rebuild the error in another process."""
        return type(self), (self.problem, self.cell)


def attack_misfits(settings: CellSettings) -> list[Problem]:
    """Return why the attack of a cell with valid parts cannot work on its client with the given knowledge."""
    attack, model = settings.attack, network_of(settings)
    if isinstance(attack, Manipulation):
        return _manipulation_misfits(settings, attack, model)
    if isinstance(attack, KnownPolicy):
        return _policy_misfits(settings, attack)
    if isinstance(attack, TokenMatching):
        attack = attack.matching
    if not isinstance(attack, Matching):
        return []
    problems = [
        Problem(("attack",), _update_misfit(settings, attack) or _sign_misfit(settings, attack)),
        Problem(("attack", "labels"), _rule_misfit(settings, attack, model)),
        *_prior_misfits(settings, attack, model),
        Problem(("knowledge", "dropout"), _dropout_misfit(settings)),
    ]
    return [problem for problem in problems if problem.message]


def _manipulation_misfits(settings: CellSettings, attack: Manipulation, model: Model) -> list[Problem]:
    """Return why a manipulation does not fit the network, the sum of clients or the public images."""
    clients = settings.client.aggregation.clients
    try:
        public = public_images(settings)
        if len(public) < LEAST_PUBLIC:
            raise InputError(
                f"{attack.name} needs {LEAST_PUBLIC} public examples, {settings.data.name} has {len(public)}"
            )
        check_clients(attack, clients)
        dishonest_weights(attack, model, shared_weights(model, 1), public[:LEAST_PUBLIC], [0])
    except InputError as error:
        return [Problem(("attack",), str(error))]
    return []


def _policy_misfits(settings: CellSettings, attack: KnownPolicy) -> list[Problem]:
    """Return what an attacker who inverts transformations lacks."""
    if not settings.knowledge.defence:
        words = "needs to know the client's transformations: give knowledge.defence: true, or use ig"
        return [Problem(("attack",), f"{attack.name} {words}")]
    if settings.client.rounds > 1 and settings.client.on_data is not None:
        words = "supports one round: a client draws new transformations in every round"
        return [Problem(("client", "rounds"), f"{attack.name} {words}")]
    return []


def _sign_misfit(settings: CellSettings, attack: Matching) -> str:
    """Return why an attacker who knows that signs are sent cannot use it; "" if it can."""
    signs = any(isinstance(defence, Sign) for defence in settings.client.defences)
    if not signs or not settings.knowledge.defence or LocalSteps not in simulator_kinds(attack.simulate):
        return ""
    words = "compares differences of weights, and signs have no size: use sme or ig_update, or give knowledge.defence: false"
    return f"{attack.name} {words}"


def _prior_misfits(settings: CellSettings, attack: Matching, model: Model) -> list[Problem]:
    """Return a problem if total variation is used on inputs that are not images."""
    if len(model.input_shape) >= 3 or not any(isinstance(prior, TotalVariation) for prior in attack.priors):
        return []
    shape = "x".join(map(str, model.input_shape))
    where, remedy = (
        (("attack", "tv"), "give tv: 0") if "tv" in settings.recipe.settings else (("attack", "priors"), "leave it out")
    )
    return [Problem(where, f"total variation is for pictures, an input is {shape}: {remedy}")]


def _dropout_misfit(settings: CellSettings) -> str:
    """Return why the attacker cannot have the client's dropout masks; "" if it can."""
    client = settings.client
    several = client.local is not None or client.rounds > 1 or client.aggregation.clients > 1
    if not several or not settings.knowledge.dropout or not settings.model.drops:
        return ""
    return (
        "the masks can be known for one gradient in one round: local steps, further rounds and clients draw their own"
    )


def _update_misfit(settings: CellSettings, attack: Matching) -> str:
    """Return why the attack does not suit what the client shares and the attacker knows; "" if it does."""
    local, knows_local = settings.client.local, settings.knowledge.local
    kinds = simulator_kinds(attack.simulate)
    if local is None:
        needs = kinds & {OnTheLine, LocalSteps}
        words = "needs weights after local training, this client shares a gradient: give client.local, or use ig"
        return f"{attack.name} {words}" if needs else ""
    if LocalSteps in kinds:
        words = (
            "simulates the client's local steps: give knowledge.local: true, or use sme or ig_update, which need none"
        )
        return "" if knows_local else f"{attack.name} {words}"
    if OnTheLine in kinds or not compares_lengths(attack.objective):
        return ""
    if not knows_local:
        words = "a change of weights has the length of a gradient only by the rate: give knowledge.local: true"
        return f"{attack.name} compares lengths, and {words}, or use ig, ig_update or sme"
    simulated = settings.knowledge.defence  # an informed attacker simulates the local steps
    if local.optimiser == "adam" and not simulated:
        words = "after Adam an update's says nothing of the gradient's: use ig_update, sme or dlfa"
        return f"{attack.name} compares lengths, and {words}"
    return ""


def _rule_misfit(settings: CellSettings, attack: Matching, model: Model) -> str:
    """Return why the attack's rule cannot read the labels (the loss is checked elsewhere); "" if it can."""
    samples, knows_labels = settings.data.samples, settings.knowledge.labels
    rule = chosen_rule(attack.labels, samples, known=knows_labels)
    if rule == JOINT:
        return ""
    if rule == "known":
        words = f"give knowledge.labels: true, or attack.labels: {'cpl' if samples == 1 else 'counts'} or {JOINT}"
        return "" if knows_labels else f"label rule 'known' needs known labels: {words}"
    if rule in ONE_EXAMPLE and samples > 1:
        return (
            f"label rule {rule!r} is for one example, data.samples is {samples}: give attack.labels: counts or {JOINT}"
        )
    try:
        check_head(rule, model)
    except InputError as error:
        return str(error)
    return ""


def part_misfits(settings: CellSettings) -> list[Problem]:
    """Return problems between the parts of a cell: missing data, too few examples, a network that does not fit."""
    try:
        data = data_of(settings.data)
    except InputError as error:
        return [Problem(("data",), str(error))]
    misfits = text_misfits(settings, data)
    if misfits:
        return misfits
    chosen = settings.data
    cut = chosen.mix == "given" and chosen.order != "writers"
    problems = _too_few(settings, data) if cut else _mix_misfits(settings, data)
    return (
        problems
        + _public_misfits(settings, data)
        + insider_misfits(settings, data)
        + (_model_misfits(settings.model, data) or _token_misfits(settings, data) or _checkpoint_misfits(settings))
        + _code_misfits(settings, data)
        + _label_misfits(settings)
        + _metric_misfits(settings.metrics, data)
    )


def _metric_misfits(names: Sequence[str], data: Dataset) -> list[Problem]:
    """Return the metrics that cannot score an example of this data."""
    if data.kind == "text":  # their scores have no settings
        return []
    problems, example = [], data.pictures("train" if data.size("train") else "test", [0])[None]
    scores = score(example, torch.zeros(1, 1, dtype=torch.int64), example, None)
    for place, name in enumerate(names):
        try:
            if data.kind == "table" and not METRICS[name].tables:
                raise InputError(f"metric {name!r} is for pictures, {data.name} is a table")
            trial_means([name], example, example, scores)
        except InputError as error:
            problems.append(Problem(("metrics", place), str(error)))
    return problems


def _too_few(settings: CellSettings, data: Dataset) -> list[Problem]:
    """Return a problem if the part has fewer examples than all clients together need."""
    chosen = settings.data
    size, wanted = data.size(chosen.part), chosen.first + settings.trials * chosen.samples
    if wanted <= size:
        return []
    most = max(0, (size - chosen.first) // chosen.samples)
    message = f"{wanted:,} examples are asked for, {chosen.name} {chosen.part} has {size:,}: at most {most} trials"
    return [Problem(("trials",), message)]


def _mix_misfits(settings: CellSettings, data: Dataset) -> list[Problem]:
    """Return a problem if the label mix yields fewer batches than there are clients."""
    chosen = settings.data
    where, samples = f"{chosen.name} {chosen.part} from number {chosen.first} on", chosen.samples
    try:
        batches = len(mixed_batches(chosen))
    except InputError as error:  # no writers
        return [Problem(("data", "order"), str(error))]
    if batches >= settings.trials:
        return []
    if batches or chosen.mix in ("given", "random"):
        by = f"mix {chosen.mix!r}" if chosen.mix != "given" else f"order {chosen.order!r}"
        message = f"{settings.trials:,} batches of {samples} with {by} are asked for"
        return [Problem(("trials",), f"{message}, {where} has {batches:,}: at most {batches} trials")]
    labels = data.labels(chosen.part, slice(chosen.first, None) if chosen.order == "given" else slice(None))
    need = f"{samples} of one class" if chosen.mix == "equal" else f"{-(-samples // 2)} of each of two classes"
    most = int(torch.bincount(labels).max()) if len(labels) else 0
    message = f"mix {chosen.mix!r} with {samples} samples needs {need}, {where} has at most {most} of one class"
    return [Problem(("data", "mix"), message)]


def _public_misfits(settings: CellSettings, data: Dataset) -> list[Problem]:
    """Return a problem if the public examples of baselines or metrics are missing or do not fit in memory."""
    public: Part = "train" if settings.data.part == "test" else "test"
    compared = [n for n, name in enumerate(settings.metrics) if isinstance(METRICS[name], ContextMetric)]
    asked: list[tuple[tuple[str | int, ...], str]] = [
        *((("baselines",), name) for name in settings.baselines if name != "prior_only"),
        *((("metrics", place), settings.metrics[place]) for place in compared),
    ]
    if not asked:
        return []
    (field, name), numbers = asked[0], data.size(public) * math.prod(data.input_shape)
    if not numbers:
        message = f"{name} needs public examples, {data.name} has none in its part {public}: leave it out"
        return [Problem(field, message)]
    if numbers > MOST_PUBLIC and data.side is not None:
        held = f"{numbers * 4 / 2**30:.0f} GiB of public pictures"
        return [Problem(field, f"{name} would hold {held} at size {data.side}: leave it out")]
    if compared:
        classes = [set(data.labels(part, slice(None)).tolist()) for part in (settings.data.part, public)]
        if lacking := sorted(classes[0] - classes[1]):
            message = (
                f"{settings.metrics[compared[0]]} compares with public examples of each class, {data.name} has none"
            )
            return [Problem(("metrics", compared[0]), f"{message} of class {lacking[0]} in its part {public}")]
    return []


def _checkpoint_misfits(settings: CellSettings) -> list[Problem]:
    """Return why the checkpoint cannot be the first weights of this network."""
    if not isinstance(settings.weights, Checkpoint):
        return []
    try:
        network_of(settings)
        check_scaling(settings.weights, settings.data.scaling)
    except InputError as error:
        return [Problem(("weights",), str(error))]
    return []


def _code_misfits(settings: CellSettings, data: Dataset) -> list[Problem]:
    """Return a problem if a private head has fewer codes than classes."""
    if settings.client.on_model is None:
        return []
    try:
        settings.client.on_model.check(data.classes)
    except InputError as error:
        return [Problem(("client", "on_model", "bits"), str(error))]
    return []


def _label_misfits(settings: CellSettings) -> list[Problem]:
    """Return a problem if the attack would read labels from gradients of another loss than cross entropy."""
    loss, asked = settings.client.loss, settings.recipe.label_rule
    if loss == "cross_entropy" or asked is None:
        return []
    rule = chosen_rule(asked, settings.data.samples, known=settings.knowledge.labels)
    if rule in (JOINT, "known"):
        return []
    other = "knowledge.labels: true" + ("" if asked == "auto" else " with attack.labels: auto")
    words = f"label rule {rule!r} reads cross entropy gradients, client.loss is {loss!r}"
    return [Problem(("attack", "labels"), f"{words}; give attack.labels: {JOINT}, or {other}")]


def _model_misfits(model: ModelChoice, data: Dataset) -> list[Problem]:
    """Return why the network cannot be built for this data."""
    reason = _building_error(model_text(model, data), data.input_shape, data.classes)
    return [Problem(("model",), reason)] if reason else []


def _token_misfits(settings: CellSettings, data: Dataset) -> list[Problem]:
    """Return why a network of other words or of fewer positions cannot read the sentences; one of ours takes both from the data."""
    if data.kind != "text" or isinstance(settings.weights, Checkpoint):
        return []
    try:
        network_of(settings)
    except InputError as error:
        return [Problem(("model",), f"{error} ({len(data.words)} words, sentences of {data.input_shape[0]})")]
    return []


@until_registration
@functools.lru_cache(maxsize=256)
def _building_error(text: str, shape: tuple[int, ...], classes: int) -> str:
    """Return why a network cannot be built, "" if it can; nothing is allocated."""
    name, settings = json.loads(text)
    try:
        with torch.device("meta"):
            module = {**MODELS, **TEXT_MODELS}[name](input_shape=shape, classes=classes, **settings)
            size = sum(value.numel() for value in module.parameters())
    except InputError as error:
        return str(error)
    except (RuntimeError, OverflowError, MemoryError, TypeError) as error:
        return f"cannot be built for inputs {shape}: {str(error).splitlines()[0]:.120}"
    return f"has {size:,} parameters; at most {MOST_PARAMETERS:,} are attacked" if size > MOST_PARAMETERS else ""
