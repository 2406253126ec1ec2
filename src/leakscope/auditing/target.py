"""The target of an audit, checked and prepared: input with a clear meaning is converted and noted, other input is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from leakscope.auditing.criterion import Criterion, compare, loss_on
from leakscope.auditing.limits import first_line, whole_number
from leakscope.clients import Aggregation, Client
from leakscope.core import random
from leakscope.core.devices import find_device, runs_on
from leakscope.core.errors import InputError
from leakscope.core.layer_inputs import noting
from leakscope.core.model import Model
from leakscope.core.scaling import Scaling
from leakscope.core.short_repr import short_repr
from leakscope.core.types import LocalTraining
from leakscope.defences import Defence
from leakscope.defences.on_update import RememberingDefence, UpdateDefence
from leakscope.learning.losses import UserLoss
from leakscope.models import Lack, find_shortfall, from_module
from leakscope.models.counting_norm import count_real_examples

ONE_VALUE = "more than 1 value per channel"  # torch's words where a batch has no spread
Truth = Callable[[int], tuple[Tensor, Tensor]]


class UntestedError(InputError):
    """The target cannot be attacked by any attack of the suite; the audit reports it as untested, never as safe."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Target:
    """What is audited; what `package.module:build` returns.

    `inputs` are as the model takes them, M x ...; `labels` are M class numbers or one-hot rows, or what `loss` compares outputs
    with (numbers, rows, masks). `loss` is a name or any function `(output, labels) -> scalar`. `client` is the local training
    (None: one gradient of all examples). `examples` is the number of examples behind one update: fewer leak more, so give the
    true number; 1 is the worst case. `aggregate` is the number of clients whose mean update is all that the server sees; each
    holds `examples`; an `Aggregation` also says how many drop out and how unequal they are. `mean` and `std` are the normalisation of
    images in [0, 1]; without them the range of `inputs` is the box of valid values. For captures, `truth` may return the data of a
    partition, and `input_shape` may replace `inputs`. `words` spell the tokens of a token network, one for each row of its embedding.
    Clients and attacks run on `device`, or where the model's weights are.
    """

    model: nn.Module
    inputs: Tensor | None = None
    labels: Tensor | None = None
    loss: Criterion = "cross_entropy"
    client: LocalTraining | Client | None = None
    defences: Sequence[Defence] = ()
    examples: int = 1
    aggregate: int | Aggregation = 1
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    input_shape: tuple[int, ...] | None = None
    truth: Truth | None = None
    device: str | torch.device | None = None
    words: Sequence[str] | None = None

    __repr__ = short_repr


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """A prepared target: the model as a pure function, the client, the sample in [0, 1], and notes on what was converted."""

    model: Model
    client: Client
    inputs: Tensor
    labels: Tensor
    examples: int
    notes: tuple[str, ...]
    unmatched: str | None = None  # why update-matching attacks cannot work on the model
    targets: Tensor | None = None  # what a caller's own loss compares outputs with, M x ...

    __repr__ = short_repr

    @property
    def behind(self) -> int:
        """Return the number of examples behind one update that the server sees, of all its clients."""
        return self.examples * self.client.aggregation.clients

    @property
    def device(self) -> torch.device:
        """Return where the weights lie, which is where clients and attacks run."""
        return next((value.device for value in self.model.parameters.values()), torch.device("cpu"))


def make_subject(target: Target) -> Subject:
    """Return the target ready to be attacked, or raise `UntestedError`."""
    check_module(target.model)
    if target.inputs is None or target.labels is None:
        raise InputError("audit needs inputs and labels: a sample of your own data")
    notes: list[str] = []
    device = find_device(target.device, target.model.parameters())
    inputs = check_inputs(target.inputs, notes)
    module = plain_module(target.model, notes)
    _check_runs(module, inputs)
    scaling, pictures = find_scaling(inputs, target.mean, target.std, notes)
    try:
        model = from_module(module, input_shape=tuple(inputs.shape[1:]), example=inputs[:2], any_output=True)
    except InputError as error:
        raise UntestedError(str(error)) from None
    examples = whole_number(target.examples, "examples", 1, len(inputs))
    compared = compare(target.loss, target.labels, model, inputs, notes, padded=_padded(target.client, examples))
    client = make_client(target, scaling, compared.loss)
    whole_number(client.aggregation.clients, "aggregate", 1, len(inputs) // examples)
    check_batch(model, client, examples)
    if client.sends_buffers and model.norms:
        notes.append(
            "clients send the buffers of batch norm, statistics of their batch; keep them at the client, as FedBN does"
        )
    lacks = find_shortfall(model)
    if lacks is not None and lacks.lack is Lack.FIRST:
        raise UntestedError(lacks.sentence)
    moved = runs_on(model, device, inputs[:2])
    if isinstance(moved, str):
        notes.append(f"the model cannot run on {device} ({moved}): it was audited on the CPU")
    else:
        model, client = moved, replace(client, loss=loss_on(device, client.loss))
    unmatched = None if lacks is None else lacks.sentence
    return Subject(
        model, client, pictures, compared.labels, examples, tuple(notes), unmatched, compared.targets
    )  # fmt: skip


def _padded(client: LocalTraining | Client | None, examples: int) -> bool:
    """Return whether the last local batch of a client is smaller than the others."""
    local = client.local if isinstance(client, Client) else client
    size = local.batch_size if isinstance(local, LocalTraining) else None
    return size is not None and examples > size and examples % size != 0


def check_module(model: object) -> None:
    """Refuse anything but an nn.Module."""
    if not isinstance(model, nn.Module):
        raise InputError(f"the model must be an nn.Module, got {type(model).__name__}")


def check_batch(model: Model, client: Client, examples: int) -> None:
    """Refuse a batch of one example if batch norm in train mode needs more."""
    local = client.local
    number = examples if local is None or local.batch_size is None else min(local.batch_size, examples)
    like = next(iter(model.parameters.values()))
    x = random.uniform(random.key(0), (number, *model.input_shape), like.dtype)
    try:
        with torch.no_grad(), noting(_training_norms(model)) as inputs:
            model.apply(model.parameters, model.buffers, x, random.key(0))
        if any(entering is not None and entering.numel() == entering.shape[1] for entering in inputs.values()):
            raise ValueError(ONE_VALUE)
    except ValueError as error:
        if ONE_VALUE not in str(error):
            raise InputError(f"the model cannot run on a batch of {number}: {first_line(error)}") from None
        which = "examples" if number == examples else "a batch size"
        raise InputError(
            f"batch norm in train mode needs {which} of at least 2 (it normalises by the batch), got {number}; or call "
            "model.eval()"
        ) from None


def make_client(target: Target, scaling: Scaling, loss: str | UserLoss) -> Client:
    """Return the client that the target describes."""
    defences = list_defences(target.defences)
    if isinstance(target.client, Client):
        if defences and target.client.defences:
            raise InputError("audit was given defences twice: in client and by themselves; give them once")
        client = replace(target.client, scaling=scaling, loss=loss, defences=defences or target.client.defences)
        return client if target.aggregate == 1 else replace(client, aggregate=target.aggregate)
    if target.client is not None and not isinstance(target.client, LocalTraining):
        raise InputError(f"audit(client=...) takes a LocalTraining or a Client, got {type(target.client).__name__}")
    return Client(local=target.client, loss=loss, scaling=scaling, defences=defences, aggregate=target.aggregate)


def _training_norms(model: Model) -> list[str]:
    """Return the names of the batch norms in train mode."""
    module = getattr(model.apply, "module", None)
    layers = module.named_modules() if isinstance(module, nn.Module) else ()
    return [name for name, each in layers if isinstance(each, nn.modules.batchnorm._BatchNorm) and each.training]


def list_defences(given: object) -> tuple[Defence, ...]:
    """Return the defences as a tuple; a single one is accepted."""
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    for one in several:
        if not isinstance(one, UpdateDefence | RememberingDefence) or isinstance(one, type):
            raise InputError(f"defences must be defences of the update, such as [Clip(1.0)], got {one!r:.60}")
    return tuple(several)


def check_inputs(inputs: Tensor, notes: list[str]) -> Tensor:
    """Return the sample as float32 on the CPU; refuse unusable values."""
    if not isinstance(inputs, Tensor) or inputs.ndim < 2 or len(inputs) == 0:
        got = tuple(inputs.shape) if isinstance(inputs, Tensor) else type(inputs).__name__
        raise InputError(f"inputs must be a tensor of M examples, M x ..., got {got}")
    if inputs.device.type == "meta":
        raise InputError("inputs are on the meta device, which has no numbers; load them first")
    if not inputs.is_floating_point():
        if inputs.dtype == torch.uint8:
            raise InputError("inputs are bytes; give what the model takes: floating numbers (divide by 255, normalise)")
        if inputs.is_complex():
            raise UntestedError(f"inputs are complex numbers ({inputs.dtype}); no attack searches over those")
        raise UntestedError(
            f"inputs are whole numbers ({inputs.dtype}), such as token numbers; no attack searches over those"
        )
    if not bool(inputs.isfinite().all()):
        raise InputError("inputs hold NaN or infinity")
    if inputs.dtype != torch.float32:
        notes.append(f"inputs were converted from {inputs.dtype} to float32")
    return inputs.detach().to("cpu", torch.float32)


def plain_module(module: nn.Module, notes: list[str]) -> nn.Module:
    """Return a copy on the CPU in float32, with train-mode batch norm replaced by one that runs under vmap."""
    try:
        copied = copy.deepcopy(module)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"the model cannot be copied ({first_line(error)}); give one that was just built") from None
    values = [*copied.parameters(), *copied.buffers()]
    if any(value.device.type == "meta" for value in values):
        raise InputError("the model has weights on the meta device, which has no numbers; load its weights first")
    kinds = {str(value.dtype) for value in values if value.is_floating_point() and value.dtype != torch.float32}
    if kinds:
        notes.append(f"the model was converted from {', '.join(sorted(kinds))} to float32: rounding hides a little")
    copied = copied.to("cpu").float()
    if any(isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training for m in copied.modules()):
        count_real_examples(copied)  # keeps the running statistics, which clients may send
        if any(type(m) is nn.SyncBatchNorm for m in copied.modules()):
            torch.func.replace_all_batch_norm_modules_(copied)
        notes.append("batch norm in train mode normalises by the client's own batch")
    return copied


def _check_runs(module: nn.Module, inputs: Tensor) -> None:
    """Refuse a sample that the model cannot take."""
    try:
        with torch.no_grad():
            module(inputs[:2])
    except Exception as error:  # a user's network may raise anything
        raise InputError(
            f"the model cannot run on inputs of shape {tuple(inputs.shape)}: {first_line(error)}"
        ) from None


def find_scaling(
    inputs: Tensor, mean: Sequence[float] | None, std: Sequence[float] | None, notes: list[str]
) -> tuple[Scaling, Tensor]:
    """Return the scaling from images in [0, 1] to inputs, and the images."""
    rank = inputs.ndim - 1
    if (mean is None) != (std is None):
        raise InputError("mean and std belong together: give both or neither")
    low, high = float(inputs.min()), float(inputs.max())
    if mean is not None and std is not None:
        scaling = Scaling(tuple(mean), tuple(std))
        pictures = scaling.unscale(inputs, rank)
        if float(pictures.min()) < -1e-3 or float(pictures.max()) > 1 + 1e-3:
            raise InputError(
                f"inputs times std plus mean must lie in [0, 1], got [{float(pictures.min()):.4g}, "
                f"{float(pictures.max()):.4g}]; check mean and std, or leave both out"
            )
    elif low >= 0 and high <= 1:
        scaling, pictures = Scaling(), inputs
    elif rank == 1:
        scaling = _by_column(inputs)
        pictures = scaling.unscale(inputs, rank)
        notes.append(
            "mean and std were not given: in every column the range of the sample was read as [0, 1], so that no column "
            "outweighs the others"
        )
    else:
        width = high - low if high > low else 1.0
        scaling = Scaling((-low / width,), (1 / width,))
        pictures = scaling.unscale(inputs, rank)
        notes.append(f"mean and std were not given: the range [{low:.4g}, {high:.4g}] of the sample was read as [0, 1]")
    return scaling, pictures.clamp(0, 1)


def _by_column(table: Tensor) -> Scaling:
    """Return the scaling that maps every column's range to [0, 1]; a constant column is only shifted to 0."""
    low, high = table.double().amin(0), table.double().amax(0)
    narrow = high - low <= 1e-7 * torch.maximum(low.abs(), high.abs()).clamp_min(1e-23)  # what float32 can tell apart
    width = torch.where(narrow, 1.0, high - low)
    return Scaling(tuple((-low / width).tolist()), tuple((1 / width).tolist()))
