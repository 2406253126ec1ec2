"""Captured updates as an attacker's observation: read, checked (no hash covers their JSON text), selected and stacked."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from leakscope.analysis.inferring import Inferred, infer
from leakscope.attacks.batch_statistics import COUNTER, MEAN, VARIANCE
from leakscope.auditing.criterion import class_numbers, label_tensor
from leakscope.auditing.limits import MOST, positive_number, spoken, whole_number
from leakscope.auditing.suite import Untested
from leakscope.auditing.target import (
    Target,
    Truth,
    UntestedError,
    check_inputs,
    check_module,
    find_scaling,
    plain_module,
)
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.scaling import Scaling
from leakscope.core.tree import Tree
from leakscope.core.types import Batch, LocalTraining, Observation, Round, Shares, make_batch
from leakscope.learning.losses import LOSSES
from leakscope.models import from_module
from leakscope.store.captures import Capture, Plain, check_model, read_capture

RATE = ("lr", "learning-rate", "learning_rate", "rate")
EPOCHS = ("local-epochs", "local_epochs", "epochs")
BATCH_SIZE = ("batch-size", "batch_size")
MOST_RATE, MOST_EPOCHS = 1e6, 1000
MOST_EXAMPLES = 10_000
MOST_VALUES = 2**28
EDGE = 1e-3
BEST_ROUND = (
    "the exact attacks read all rounds of a client together, and what they recover from single rounds adds up; of any other attack "
    "the round with most certified samples counts, then that with the least mismatch; the truth is not consulted"
)
OTHERS = (
    "they share something else, or were trained with another learning rate, epochs or batch size than most, and an "
    "attack simulates one training; audit them from a directory of their own"
)
STEPS = "local steps"
UNSTATED = (
    "the captures do not state both the epochs and the batch size, so the number of local steps is not known: their config takes "
    "'epochs' and 'batch-size', or give the target a client"
)


def model_of_captures(target: Target, notes: list[str]) -> tuple[Model, Tensor | None]:
    """Return the model, and the sample of inputs if the target has one."""
    check_module(target.model)
    module = plain_module(target.model, notes)
    inputs = None if target.inputs is None else check_inputs(target.inputs, notes)
    shape = target.input_shape if inputs is None else tuple(inputs.shape[1:])
    if shape is None:
        raise InputError("auditing captures needs the shape of an input: Target(input_shape=...) or a sample as inputs")
    return from_module(
        module, input_shape=shape, example=None if inputs is None else inputs[:2], any_output=True
    ), inputs


def _check(capture: Capture, model: Model) -> None:
    values = {**model.parameters, **model.buffers}
    shapes = {name: tuple(value.shape) for name, value in values.items()}
    replaced = _replaced_statistics(model)
    given = {
        name: value
        for name, value in capture.before.items()
        if name in values or name not in replaced or value.numel() not in (1, replaced[name])
    }
    check_model(replace(capture, before=given), shapes, model.name, needed=frozenset(model.shared(model.parameters)))
    for name, like in values.items():
        parts = [part[name].to(like.dtype) for part in (capture.before, capture.sent) if name in part]
        change = [parts[0] - parts[1]] if capture.shares == "weights" and len(parts) == 2 else []
        if like.is_floating_point() and not all(bool(each.isfinite().all()) for each in (*parts, *change)):
            raise InputError(f"{capture.name}: {name!r:.80} holds numbers too large for {like.dtype}")


def _replaced_statistics(model: Model) -> dict[str, int]:
    """Return the names and lengths of the running statistics of batch norms that `plain_module` replaced: captures may hold them."""
    module = getattr(model.apply, "module", None)
    layers = module.named_modules() if isinstance(module, nn.Module) else ()
    norms = [(name, each) for name, each in layers if isinstance(each, nn.modules.batchnorm._BatchNorm)]
    kinds = (MEAN, VARIANCE, COUNTER)
    return {f"{name}.{kind}".removeprefix("."): each.num_features for name, each in norms for kind in kinds}


@dataclass(frozen=True, slots=True)
class StatedTraining:
    """Local training as stated by the server's configuration; None: not stated."""

    rate: float | None = None
    epochs: int | None = None
    batch_size: int | None = None

    def known(self, samples: int) -> LocalTraining | None:
        """Return the local training of a client of `samples` examples; None if its rate or the number of its steps is not known."""
        if self.rate is None or self.epochs is None or (self.batch_size is None and samples > 1):
            return None
        return LocalTraining(rate=self.rate, epochs=self.epochs, batch_size=self.batch_size)


def stated_training(config: Mapping[str, Plain], where: str) -> StatedTraining:
    """Return the local training stated in a configuration, every number checked."""

    def first(names: tuple[str, ...]) -> tuple[str, object]:
        name = next((name for name in names if name in config), names[0])
        return f"{where}: {name!r} in 'config'", spoken(config.get(name))

    (rate_name, rate), (epochs_name, epochs), (size_name, size) = first(RATE), first(EPOCHS), first(BATCH_SIZE)
    return StatedTraining(
        None if rate is None else positive_number(rate, rate_name, MOST_RATE),
        None if epochs is None else whole_number(epochs, epochs_name, 1, MOST_EPOCHS),
        None if size is None else whole_number(size, size_name, 1, MOST),
    )


@dataclass(frozen=True, slots=True)
class Listed:
    """A checked capture without its tensors, because all tensors together may not fit into memory."""

    path: Path
    owner: str  # the partition, or the client that does not say its partition
    examples: int | None
    shares: str
    stated: StatedTraining


def list_one(path: Path, model: Model, *, configured: bool) -> Listed:
    """Return a capture without its tensors, checked against the model."""
    capture = read_capture(path)
    _check(capture, model)
    silent = configured or capture.shares == "gradient"  # the target states the local training, or there is none
    return Listed(
        path,
        f"client {capture.client}" if capture.partition is None else f"partition {capture.partition}",
        capture.examples,
        capture.shares,
        StatedTraining() if silent else stated_training(capture.config, path.name),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """The captures to attack: same number of examples, same kind of update, same stated training."""

    captures: list[Capture]
    owners: tuple[int, ...]  # the number of the client of each capture; one of several rounds has several captures
    samples: int
    stated: StatedTraining
    inferred: Inferred | None = None
    unplayed: str = ""  # captures of another kind, in words


def choose(
    listed: Sequence[Listed], model: Model, target: Target, most: int, notes: list[str], untested: list[Untested]
) -> Chosen:
    """Return at most `most` captures of the commonest kind with the fewest examples, which leak most; further rounds of a client last."""
    known = [item.examples for item in listed if item.examples]
    fewest = min(known) if known else None
    small = [item for item in listed if fewest is None or item.examples == fewest]
    commonest = Counter((item.shares, item.stated) for item in small).most_common(1)[0][0]
    alike = [item for item in small if (item.shares, item.stated) == commonest]
    unplayed = f"{len(small) - len(alike)} of {len(listed)} captures" if len(alike) < len(small) else ""
    if unplayed:
        untested.append(Untested(unplayed, OTHERS))
        unplayed += " were left out"
    picked = _first_rounds_first(alike)[:most]
    numbers = {owner: number for number, owner in enumerate(dict.fromkeys(item.owner for item in picked))}
    owners = tuple(numbers[item.owner] for item in picked)
    captures = [read_capture(item.path) for item in picked]
    if len(numbers) < len(captures):
        notes.append(f"{len(captures)} captures are of {len(numbers)} clients: {BEST_ROUND}")
    if fewest is not None:
        if len(captures) < len(listed):
            notes.append(
                f"{len(captures)} of {len(listed)} captures were attacked: those of {fewest} examples, the fewest"
            )
        _check_size(len(captures), fewest, model)
        return Chosen(captures, owners, fewest, alike[0].stated, unplayed=unplayed)
    inferred = infer_first(captures[0], model, target)
    guess = inferred.samples
    samples = whole_number(target.examples, "examples", 1, MOST) if guess.value is None else int(guess.value)
    notes.append(f"the captures do not say how many examples a client had: {samples} taken; inferred: {guess}")
    _check_size(len(captures), samples, model)
    return Chosen(captures, owners, samples, alike[0].stated, inferred, unplayed)


def _first_rounds_first(listed: Sequence[Listed]) -> list[Listed]:
    """Return the captures with the first of every client before the second of any; else in their order."""
    seen: Counter[str] = Counter()
    turns = []
    for item in listed:
        turns.append((seen[item.owner], item))
        seen[item.owner] += 1
    return [item for _, item in sorted(turns, key=lambda turn: turn[0])]


def _check_size(trials: int, samples: int, model: Model) -> None:
    """Refuse a search over more examples than any attack handles or more values than memory holds."""
    if samples > MOST_EXAMPLES or trials * samples * math.prod(model.input_shape) > MOST_VALUES:
        raise UntestedError(
            f"{trials} captures of {samples} examples of shape {model.input_shape}: attacks search over at most "
            f"{MOST_EXAMPLES:,} examples and {MOST_VALUES:,} numbers"
        )


def infer_first(capture: Capture, model: Model, target: Target) -> Inferred:
    """Return what an attacker can infer from one capture alone."""
    return infer(model, capture.before, capture.sent, shares=Shares(capture.shares), loss=str(target.loss))


def local_training(
    chosen: Chosen, model: Model, target: Target, notes: list[str], untested: list[Untested]
) -> tuple[LocalTraining | None, int | None]:
    """Return the local training and its steps: as stated, else a single step of the same length (None: not known) and None."""
    stated, first = chosen.stated, chosen.captures[0]
    weights = first.shares == "weights"
    training = stated.known(chosen.samples) if weights else None
    inferred = chosen.inferred
    if inferred is None and weights and training is None:
        inferred = infer_first(first, model, target)
    if inferred is not None:
        notes.append(_labels_note(inferred, chosen.samples))
    if training is not None:
        return training, training.steps(chosen.samples)
    if not weights or inferred is None:
        return None, None
    what = "the learning rate is not known" if stated.rate is None else "the number of local steps is not stated"
    product, steps = inferred.rate_times_steps, inferred.steps
    notes.append(f"{what}; inferred from the first capture, for all: rate times steps: {product}")
    notes.append(f"inferred local steps: {steps}")
    untested.append(Untested(STEPS, UNSTATED))
    fewest = steps.value or (1 if chosen.samples == 1 else None)  # of one example no label count depends on the length
    length = product.value or (stated.rate * fewest if stated.rate and fewest else None)
    return (LocalTraining(rate=length) if length else None), None


def _labels_note(inferred: Inferred, samples: int) -> str:
    """Return the inferred number of examples per class of the first client, in words."""
    counts = inferred.counts(samples)
    if counts is None:
        return f"inferred label counts: not known ({inferred.labels_why})"
    classes = ", ".join(f"class {c}: {n}" for c, n in enumerate(counts.tolist()) if n)
    return f"inferred label counts of the first capture: about {classes} ({inferred.labels_why})"


def observe_captures(captures: Sequence[Capture], model: Model, samples: int, shares: Shares) -> Observation:
    """Return the captures as trials of one observation; tensors missing from a capture are taken from the model."""

    def stacked(like: Tree, trees: list[Tree]) -> Tree:
        return {
            name: torch.stack([tree.get(name, value).to(value.dtype) for tree in trees]) for name, value in like.items()
        }

    shared = model.shared(model.parameters)
    before = stacked(model.parameters, [capture.before for capture in captures])
    buffers = stacked(model.buffers, [capture.before for capture in captures])
    sent = stacked(shared, [capture.sent for capture in captures])
    kept = {name: v for name, v in model.buffers.items() if all(name in capture.sent for capture in captures)}
    after = stacked(kept, [capture.sent for capture in captures]) if kept else None
    return Observation((Round(before, buffers, sent, after),), shares, torch.full((len(captures),), samples))


def ask_truth(
    captures: Sequence[Capture], target: Target, model: Model, samples: int, notes: list[str]
) -> tuple[Tensor, Tensor] | None:
    """Return the true inputs (T x N x ...) and labels (T x N; T x N x ... under the target's own loss); None unless the target
    reports them for all captures.
    """
    if target.truth is None:
        return None
    if any(capture.partition is None for capture in captures):
        notes.append("a capture does not say its partition: the truth could not be looked up")
        return None
    answers = [
        _ask(target.truth, int(capture.partition or 0), model, samples, classes=target.loss in LOSSES)
        for capture in captures
    ]
    return torch.stack([x for x, _ in answers]), torch.stack([y for _, y in answers])


def _ask(truth: Truth, partition: int, model: Model, samples: int, *, classes: bool) -> tuple[Tensor, Tensor]:
    """Return the true inputs and labels of one partition."""
    where = f"truth({partition})"
    try:
        answer = truth(partition)
    except Exception as error:  # a user's function may raise anything
        message = (str(error).strip() or "no message").splitlines()[0]
        raise InputError(f"{where} raised {type(error).__name__}: {message}") from None
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        raise InputError(f"{where} must return (inputs, labels), got {type(answer).__name__}")
    try:
        x = check_inputs(answer[0], [])
        if len(x) != samples or tuple(x.shape[1:]) != model.input_shape:
            raise InputError(f"must give {samples} inputs of shape {model.input_shape}, got {tuple(x.shape)}")
        labels = label_tensor(answer[1], samples)
        return x, class_numbers(labels, samples, model.classes, []) if classes else labels
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def scaling_of_captures(target: Target, inputs: Tensor | None, truth: Tensor | None, notes: list[str]) -> Scaling:
    """Return the scaling from [0, 1] to inputs: from mean and std, else from the range of the sample and the true data."""
    if inputs is not None:
        ranged = truth is not None and target.mean is None
        seen = torch.cat([inputs, truth.flatten(0, 1)]) if ranged and truth is not None else inputs
        return find_scaling(seen, target.mean, target.std, notes)[0]
    if (target.mean is None) != (target.std is None):
        raise InputError("mean and std belong together: give both or neither")
    if target.mean is not None and target.std is not None:
        return Scaling(tuple(target.mean), tuple(target.std))
    notes.append("neither inputs nor mean and std were given: inputs are taken to lie in [0, 1]")
    return Scaling()


def batch_of_truth(truth: tuple[Tensor, Tensor], scaling: Scaling, model: Model, *, classes: bool) -> Batch:
    """Return the true data as a batch in [0, 1], with labels as targets where the loss has no classes; values outside are an error."""
    x, y = truth
    pictures = scaling.unscale(x, len(model.input_shape))
    low, high = float(pictures.min()), float(pictures.max())
    if low < -EDGE or high > 1 + EDGE:
        raise InputError(
            f"inputs of truth times std plus mean must lie in [0, 1], got [{low:.4g}, {high:.4g}]; give the mean and std of "
            "the inputs, or a sample of them as inputs"
        )
    if classes:
        return make_batch(pictures.clamp(0, 1), y, classes=model.classes)
    none = torch.zeros(x.shape[:2], dtype=torch.int64)
    return make_batch(pictures.clamp(0, 1), none, classes=model.classes, targets=y)
