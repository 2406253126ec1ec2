"""Any `nn.Module` as a `Model`: a pure function of its parameters, buffers, input and key."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from leakscope.core import random
from leakscope.core.errors import InputError, first_line
from leakscope.core.layer_inputs import note_inputs
from leakscope.core.model import Mode, Model
from leakscope.core.registry import lookup
from leakscope.core.tree import Tree
from leakscope.models.counting_norm import put_norms
from leakscope.models.dropout import KeyedDropout, drawing_from, replace_dropout
from leakscope.models.embeddings import check_embeddings, make_dense
from leakscope.models.settings import shape_of
from leakscope.models.structure import Structure, find_structure

TRAINING_NORM = (
    "batch norm in train mode cannot run under vmap, because it writes its running statistics in place; call eval() on "
    "the module or torch.func.replace_all_batch_norm_modules_(module) before from_module"
)

# functional_call puts the given tensors into the module during the call, so calls must not overlap.
_ONE_CALL = threading.RLock()


@dataclass(frozen=True, slots=True, eq=False)
class Functional:
    """`(parameters, buffers, x, key) -> (output, buffers)` through a private copy of a module.

    Buffers are cloned first, so the given ones do not change. Attention is not fused: fused forms have no second derivative.
    """

    module: nn.Module
    names: frozenset[str] = field(init=False)  # of all tensors; empty if a tensor has several

    def __post_init__(self) -> None:
        module = self.module
        named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
        tied = len({id(value) for _, value in named}) < len(named)
        object.__setattr__(self, "names", frozenset(() if tied else (name for name, _ in named)))

    def __call__(self, parameters: Tree, buffers: Tree, x: Tensor, key: Tensor) -> tuple[Tensor, Tree]:
        """Return the output for N inputs, and the buffers after the call."""
        values = {**parameters, **{name: value.clone() for name, value in buffers.items()}}
        odd = (
            values.keys() != self.names
        )  # only then torch looks for ties and strange names: it takes as long as a small layer
        try:
            with _ONE_CALL, sdpa_kernel(SDPBackend.MATH), drawing_from(key), note_inputs(self.module):
                output = torch.func.functional_call(self.module, values, (x,), tie_weights=odd, strict=odd)
        except RuntimeError as problem:
            if "running_mean or running_var" in str(problem):
                raise InputError(TRAINING_NORM) from problem
            raise
        return output, {name: values[name] for name in buffers}

    def in_mode(self, mode: Mode) -> Functional:
        """Return the function with the module's batch norms in a mode; itself if they are."""
        module = put_norms(self.module, mode)
        return self if module is self.module else Functional(module)


def from_module(
    module: nn.Module,
    *,
    input_shape: Sequence[int],
    name: str | None = None,
    private: Iterable[str] = (),
    example: Tensor | None = None,
    any_output: bool = False,
) -> Model:
    """Return `module` as a `Model` holding clones of its values; the module itself is not changed.

    `input_shape` is the shape of ONE input. In train mode the module's dropouts draw from the key of the call (`KeyedDropout`).
    `private` names parameters that never leave the client. Frozen parameters (`requires_grad=False`) become buffers and are not
    sent; frozen layers are no `head` or `entry`. `example` is N inputs for one run, needed if values in [0, 1] will not do (token
    numbers). `any_output` takes outputs other than N rows of logits (N numbers, a map of logits for each input); `classes` is
    then the size of their second dimension. That run gives the number of classes and the dense layers an attacker may use:

    - `head`: the `nn.Linear` whose output is the model's output; nonnegative if fed by an activation without negative values, at most
      through pooling, reshaping or dropout
    - `entry`: the `nn.Linear` that reads the flattened input, the widest of several; nonnegative if the example is. (With a `Scaling`
      that makes inputs negative, give a scaled example.)

    >>> from_module(nn.Linear(4, 3), input_shape=(4,)).head
    Dense(weight='weight', bias='bias', nonnegative=False)
    """
    shape = shape_of("input_shape", input_shape)
    title = name or type(module).__name__
    network = _private_copy(module, title)
    weights = {key: value.detach() for key, value in network.named_parameters()}
    parameters = {key: weights[key] for key, value in network.named_parameters() if value.requires_grad}
    buffers = {key: value.detach() for key, value in network.named_buffers()}
    _check_values(title, weights, buffers)
    if not parameters:
        raise InputError(f"all parameters of {title} are frozen (requires_grad=False): nothing is trained or sent")
    hidden = frozenset(private)
    for one in hidden:
        lookup(weights, one, f"private parameter of {title}")
    buffers |= {key: value for key, value in weights.items() if key not in parameters}
    apply = Functional(network)
    structure = _probe(apply, title, parameters, buffers, _example(parameters, shape, example))
    return Model(
        name=title,
        apply=apply,
        parameters=parameters,
        buffers=buffers,
        input_shape=shape,
        classes=_classes(title, structure.output, shape, any_output=any_output),
        head=structure.head,
        entry=structure.entry,
        private=hidden & parameters.keys(),
        narrowest=structure.narrowest,
        draws=any(isinstance(layer, KeyedDropout) and layer.training for layer in network.modules()),
        norms=structure.norms,
        dense=structure.dense,
    )


def unfrozen(model: Model) -> Model:
    """Return the network as if no parameter were frozen: with its first and last dense layer whether they are trained or not."""
    if not isinstance(model.apply, Functional) or all(value.requires_grad for value in model.apply.module.parameters()):
        return model
    module = copy.deepcopy(model.apply.module).requires_grad_(True)
    try:
        return from_module(module, input_shape=model.input_shape, any_output=True)
    except InputError:  # such as inputs outside [0, 1] only
        return model


def _private_copy(module: nn.Module, title: str) -> nn.Module:
    """Return an independent copy of `module` whose dropouts draw from the key."""
    if next(module.parameters(), None) is None:
        raise InputError(f"{title} has no parameters, so it has no gradient to attack")
    if any(nn.parameter.is_lazy(p) for p in module.parameters()):
        raise InputError(f"{title} has lazy layers without weights yet; run it once on an input first")
    try:
        network = copy.deepcopy(module)
    except (RuntimeError, TypeError) as problem:
        raise InputError(f"{title} cannot be copied: {first_line(problem)}") from problem
    check_embeddings(network, title)
    make_dense(network)
    replace_dropout(network)
    return network


def _check_values(title: str, parameters: Tree, buffers: Tree) -> None:
    """Raise for NaN in any value and infinity in a parameter (buffers such as attention masks may hold it)."""
    for name, value in parameters.items():
        if not value.isfinite().all():
            raise InputError(f"{title}: parameter {name!r} holds NaN or infinity")
    for name, value in buffers.items():
        if value.isnan().any():
            raise InputError(f"{title}: buffer {name!r} holds NaN")


def _example(parameters: Tree, shape: tuple[int, ...], given: Tensor | None) -> Tensor:
    """Return the given example, or two inputs drawn from U[0, 1)."""
    if given is None:
        first = next(iter(parameters.values()))
        return random.uniform(random.key(0), (2, *shape), first.dtype).to(first.device)
    if given.ndim < 1 or tuple(given.shape[1:]) != shape:
        raise InputError(f"example must be N inputs of shape {shape}, got {tuple(given.shape)}")
    return given.detach().clone()


def _probe(apply: Functional, title: str, parameters: Tree, buffers: Tree, x: Tensor) -> Structure:
    """Return what one run on the example shows; torch's global generator is not changed."""
    cuda = [x.device] if x.is_cuda else []
    with torch.random.fork_rng(devices=cuda):
        before = _generator_states(x)
        try:
            structure = find_structure(
                lambda value: apply(parameters, buffers, value, random.key(0, value.device))[0],
                apply.module,
                parameters,
                x,
            )
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as problem:
            raise InputError(
                f"{title} cannot run on inputs of shape {tuple(x.shape)}: {first_line(problem)}"
            ) from problem
        drew = any(not torch.equal(a, b) for a, b in zip(before, _generator_states(x), strict=True))
    if drew:
        raise InputError(
            f"{title} draws from torch's global generator when it runs, so its results could not be repeated; call "
            "eval() on it, or use nn.Dropout layers, which from_module replaces by KeyedDropout"
        )
    return structure


def _generator_states(x: Tensor) -> list[Tensor]:
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(x.device)] if x.is_cuda else [])]


def _classes(title: str, output: object, shape: tuple[int, ...], *, any_output: bool) -> int:
    """Return the number of columns of the example's output."""
    if not isinstance(output, Tensor) or (output.ndim < 1 if any_output else output.ndim != 2):
        got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        wanted = "a tensor" if any_output else "N rows of logits"
        raise InputError(f"{title} must give {wanted} for N inputs of shape {shape}, got {got}")
    return output.shape[1] if output.ndim > 1 else 1
