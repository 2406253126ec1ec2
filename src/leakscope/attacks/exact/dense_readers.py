"""Which trained dense layers of a token network read the same tensor, and that tensor for any tokens.

Found by running a few sequences through a copy in eval mode and float64, so that no architecture has to be named. Dense layers are
`nn.Linear` and layers with a d x o weight, as `transformers`' Conv1D.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from leakscope.core.errors import InputError, first_line
from leakscope.core.tree import Tree
from leakscope.core.types import Round

SAME = 1e-9  # of a tensor's largest value: two runs that compute the same


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

    def read(self, tokens: Tensor, layers: Sequence[str]) -> list[Tensor]:
        """Return the first inputs of the named layers for N x T tokens; the run ends with the last of them."""
        inputs: dict[str, Tensor] = {}

        def note(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
            def hook(layer: nn.Module, args: tuple[Tensor, ...]) -> None:  # noqa: ARG001  torch gives both
                inputs.setdefault(name, args[0])
                if len(inputs) == len(layers):
                    raise _ReadEnoughError

            return hook

        with ExitStack() as hooks, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            for name in layers:
                hooks.enter_context(self.module.get_submodule(name).register_forward_pre_hook(note(name)))
            with suppress(_ReadEnoughError):
                self.module(tokens)
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
    owners = Counter(id(value) for layer in network.module.modules() for value in layer.parameters(recurse=False))
    groups: dict[int, tuple[Tensor, list[str]]] = {}  # holds the tensors, so that no id is used twice

    def note(name: str, width: int) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(layer: nn.Module, args: tuple[Tensor, ...]) -> None:  # noqa: ARG001  torch gives both
            x = args[0]
            if x.shape == (*tokens.shape, width):
                groups.setdefault(id(x), (x, []))[1].append(name)

        return hook

    with ExitStack() as hooks, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        for name, layer in network.module.named_modules():
            weight = getattr(layer, "weight", None)
            if f"{name}.weight" not in sent or not isinstance(weight, Tensor) or weight.ndim != 2:
                continue
            if owners[id(weight)] == 1 and not isinstance(layer, nn.Embedding | nn.EmbeddingBag):
                width = weight.shape[1 if isinstance(layer, nn.Linear) else 0]
                hooks.enter_context(layer.register_forward_pre_hook(note(name, width)))
        network.module(tokens)
    return [_shared_input(network, x, layers) for x, layers in groups.values()]


def _shared_input(network: TokenNetwork, x: Tensor, layers: Sequence[str]) -> SharedInput:
    limit = SAME * float(x.abs().max())
    columns = (name for name in layers if not isinstance(network.module.get_submodule(name), nn.Linear))
    return SharedInput(
        layer=layers[0],
        weights=tuple(f"{name}.weight" for name in layers),
        columns=frozenset(f"{name}.weight" for name in columns),
        width=x.shape[-1],
        mixes=float((x[0, 1:] - x[1, 1:]).abs().max()) > limit,
        causal=float((x[0, :-1] - x[2, :-1]).abs().max()) <= limit,
    )
