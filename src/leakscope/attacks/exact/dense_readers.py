"""Which trained dense layers of a token network read the same tensor, and that tensor for any tokens.

Found by running a few sequences through a copy in eval mode and float64, so that no architecture has to be named. Dense layers are
`nn.Linear`, layers with a d x o weight, as `transformers`' Conv1D, the projections of an `nn.MultiheadAttention` on one tensor, and
products with a matrix that the network holds itself (`x @ self.A.T`), as in low-rank adapters written by hand.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from leakscope.core.errors import InputError, first_line
from leakscope.core.token_layers import EMBEDDINGS
from leakscope.core.tree import Tree
from leakscope.core.types import Round

MATRIX = 2
SAME = 1e-9  # of a tensor's largest value: two runs that compute the same
PRODUCTS = (torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__)

Note = Callable[
    [str, Tensor, bool], None
]  # reader, what it reads (N x T x width), whether its weight is width x outputs


class _ReadEnoughError(Exception):
    """Ends a run once the last wanted layer was reached."""


@dataclass(frozen=True, slots=True)
class SharedInput:
    """The dense layers that read one tensor (N x T x width), by the name of the first, and their weights.

    `columns` are those weights that are stored as width x outputs. `mixes` says whether a token's part depends on tokens before it,
    `causal` that it depends on none behind it.
    """

    layer: str
    weights: tuple[str, ...]
    columns: frozenset[str]
    width: int
    mixes: bool
    causal: bool

    def rows(self, update: Tree) -> Tensor:
        """Return the weights' update as rows that lie in the span of the inputs, K x width, in float64."""
        return torch.cat(
            [update[name].double().mT if name in self.columns else update[name].double() for name in self.weights]
        )


@dataclass(frozen=True, slots=True, eq=False)
class TokenNetwork:
    """A network over token numbers, in eval mode and float64, with a client's weights."""

    module: nn.Module

    @property
    def device(self) -> torch.device:
        """Return where the network lies."""
        return next(self.module.parameters()).device

    def read(self, tokens: Tensor, layers: Sequence[str]) -> list[Tensor]:
        """Return the first inputs of the named layers for N x T tokens; the run ends with the last of them."""
        inputs: dict[str, Tensor] = {}

        def note(name: str, x: Tensor, columns: bool) -> None:  # noqa: ARG001  a Note
            inputs.setdefault(name, x)
            if len(inputs) == len(layers):
                raise _ReadEnoughError

        with _noting(self.module, layers, note), suppress(_ReadEnoughError):
            self.module(tokens.to(self.device))
        return [inputs[name] for name in layers]


def token_network(module: nn.Module, weights: Tree) -> TokenNetwork:
    """Return a private copy of the network with these weights; names that are missing keep the module's values."""
    network = copy.deepcopy(module).double().eval()
    try:
        network.load_state_dict({name: value.double() for name, value in weights.items()}, strict=False)
    except RuntimeError as problem:
        raise InputError(f"these weights are of another network: {first_line(problem)}") from None
    return TokenNetwork(network)


def check_update(seen: Round) -> None:
    """Raise if an update is of other weights than the client received, as that of adapters of another rank."""
    if not seen.sent:
        raise InputError("the update is empty: the client trains no weight")
    for name, value in seen.sent.items():
        if name not in seen.before:
            raise InputError(f"the update holds {name}, which the weights before do not")
        if value.shape != seen.before[name].shape:
            raise InputError(
                f"the update's {name} is {tuple(value.shape)}, the weight before {tuple(seen.before[name].shape)}: it is of "
                "another network, or of adapters of another rank"
            )


def find_shared_inputs(network: TokenNetwork, sent: Collection[str], vocabulary: int, length: int) -> list[SharedInput]:
    """Return what the network's dense layers read, in the order of the run; only weights that are `sent`, and used once, count.

    Three sequences are run: two that differ in the first token only, and one that differs from them in the last. Their tokens are from
    the middle of the vocabulary, since a padding token, masked by the network, is its first or last.
    """
    tokens = (vocabulary // 2 + torch.arange(length)).remainder(vocabulary).repeat(3, 1)
    tokens[1, 0], tokens[2, -1] = (tokens[0, 0] - 1) % vocabulary, (tokens[0, -1] + 1) % vocabulary
    groups: dict[int, tuple[Tensor, dict[str, bool]]] = {}  # holds the tensors, so that no id is used twice

    def note(name: str, x: Tensor, columns: bool) -> None:
        if x.shape == (*tokens.shape, readers[name].shape[0 if columns else 1]):
            groups.setdefault(id(x), (x, {}))[1][name] = columns

    weights = _readers(network.module, sent)
    readers = {name: network.module.get_parameter(weight) for name, weight in weights.items()}
    with _noting(network.module, readers, note):
        network.module(tokens.to(network.device))
    return [_shared_input(x, layers, weights) for x, layers in groups.values()]


def _readers(module: nn.Module, sent: Collection[str]) -> dict[str, str]:
    """Return the weights that are sent, by the name of the layer that multiplies by it, or by their own for the code of a network."""
    owners = Counter(id(value) for layer in module.modules() for value in layer.parameters(recurse=False))
    readers = {}
    for prefix, layer in module.named_modules():
        for name, value in layer.named_parameters(prefix, recurse=False):
            if name not in sent or value.ndim != MATRIX or owners[id(value)] > 1:
                continue
            own = name.removeprefix(f"{prefix}.")
            if isinstance(layer, EMBEDDINGS):
                continue
            whole = own == "in_proj_weight" if isinstance(layer, nn.MultiheadAttention) else own == "weight"
            readers[prefix if whole and prefix else name] = name
    return readers


def _shared_input(x: Tensor, layers: Mapping[str, bool], weights: Mapping[str, str]) -> SharedInput:
    limit = SAME * float(x.abs().max())
    return SharedInput(
        layer=next(iter(layers)),
        weights=tuple(weights[name] for name in layers),
        columns=frozenset(weights[name] for name, columns in layers.items() if columns),
        width=x.shape[-1],
        mixes=float((x[0, 1:] - x[1, 1:]).abs().max()) > limit,
        causal=float((x[0, :-1] - x[2, :-1]).abs().max()) <= limit,
    )


@contextmanager
def _noting(module: nn.Module, names: Collection[str], note: Note) -> Iterator[None]:
    """Call `note` for what the named layers read, and what is multiplied by the named matrices, while the module runs."""
    layers, matrices = dict(module.named_modules()), dict(module.named_parameters())

    def hook(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], dict[str, Tensor]], None]:
        def entering(layer: nn.Module, args: tuple[Tensor, ...], given: dict[str, Tensor]) -> None:
            if isinstance(layer, nn.MultiheadAttention):
                x, *others = (
                    args[k] if k < len(args) else given[key] for k, key in enumerate(("query", "key", "value"))
                )
                if all(other is x for other in others):
                    note(name, x if layer.batch_first else x.transpose(0, 1), False)
            elif args:
                note(name, args[0], not isinstance(layer, nn.Linear))

        return entering

    fast = torch.backends.mha.get_fastpath_enabled()  # runs nn.TransformerEncoder without its layers
    with ExitStack() as hooks, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        torch.backends.mha.set_fastpath_enabled(False)
        hooks.callback(torch.backends.mha.set_fastpath_enabled, fast)
        for name in names:
            if name in layers:
                hooks.enter_context(layers[name].register_forward_pre_hook(hook(name), with_kwargs=True))
        hooks.enter_context(_Products({name: matrices[name] for name in names if name not in layers}, note))
        yield


class _Products(TorchFunctionMode):
    """Notes what is multiplied by one of these matrices, or by its transpose."""

    def __init__(self, matrices: Mapping[str, Tensor], note: Note) -> None:
        super().__init__()
        self.places = {value.data_ptr(): (name, value) for name, value in matrices.items()}
        self.note = note

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        linear = func is nn.functional.linear
        if (linear or func in PRODUCTS) and len(args) > 1:
            by = args[1].mT if linear else args[1]
            name, value = self.places.get(by.data_ptr(), ("", by))
            layout = (by.shape, by.stride())
            if name and layout in ((value.shape, value.stride()), (value.mT.shape, value.mT.stride())):
                self.note(name, args[0], layout == (value.shape, value.stride()))
        return func(*args, **(kwargs or {}))
