"""A token network as a function of embeddings, so that attacks can optimise what no gradient reaches: its token numbers.

The table of embeddings (V x d) leaves the compared update, since the lookup is not simulated. Its rows that moved say which tokens
occur (`exact.embedding_rows`), and decoding chooses among those.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from leakscope.attacks.exact.embedding_rows import Bag, bag_of_gradient, bag_of_weights
from leakscope.attacks.priors import GUESS
from leakscope.attacks.view import Clock, Simulated, Simulator
from leakscope.core.errors import InputError, first_line
from leakscope.core.model import Model
from leakscope.core.token_layers import EMBEDDINGS, padding_of
from leakscope.core.tree import Tree, take
from leakscope.core.types import Knowledge, Observation, Round, Shares


class GivenEmbeddings(nn.Module):
    """An embedding that returns what `take`, a hook before the network, was given in place of token numbers.

    The network sees a token that is not its padding in every place. One more number behind each embedding says whether its place is
    real: the network sees padding where it is 0.
    """

    def __init__(self, weight: nn.Parameter, padding: int | None = None) -> None:
        super().__init__()
        self.weight = weight  # a tied head reads it
        self.padding = padding
        self.token = int(padding == 0)
        self.embeddings: Tensor | None = None
        self.real: Tensor | None = None

    def take(self, network: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Keep the embeddings (N x L x d, or d + 1) and return token numbers of their shape."""
        del network
        width = self.weight.shape[1]
        self.embeddings = args[0][..., :width]
        tokens = torch.full(args[0].shape[:2], self.token, device=args[0].device)
        if args[0].shape[-1] > width and self.padding is not None:
            self.real = args[0][..., width] > 0
            tokens = tokens.where(self.real, self.padding)
        return (tokens,)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the embeddings; those of padding are its row of the table, for networks that do not mask it."""
        del tokens
        embeddings, self.embeddings = self.embeddings, None
        real, self.real = self.real, None
        if embeddings is None:
            raise InputError("the network looks its tokens up twice in a run, which attacks on embeddings cannot do")
        if real is not None and self.padding is not None:
            embeddings = embeddings.where(real[..., None], self.weight[self.padding])
        return embeddings


@dataclass(frozen=True, slots=True)
class Lookup:
    """The embedding that reads the token numbers: its layer, and whether another layer uses its weight too."""

    layer: str
    tied: bool

    @property
    def weight(self) -> str:
        """Return the name of the table."""
        return f"{self.layer}.weight"


def find_lookup(model: Model) -> Lookup:
    """Return the embedding of a network that reads the token numbers themselves, or raise."""
    module = token_module(model)
    tokens = (torch.arange(model.input_shape[0]) + 1).remainder(2)[None]  # no row of positions or of token types
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, EMBEDDINGS)}
    read: list[str] = []

    def note(name: str, args: tuple[Tensor, ...]) -> None:
        flat = isinstance(layers[name], nn.EmbeddingBag)  # may get the sentence without a dimension of the batch
        if torch.equal(args[0].reshape(-1), tokens.reshape(-1)) and (flat or args[0].shape == tokens.shape):
            read.append(name)

    hooks = [
        layer.register_forward_pre_hook(lambda _, args, name=name: note(name, args)) for name, layer in layers.items()
    ]
    try:
        with torch.no_grad():
            model.apply(model.parameters, model.buffers, tokens, torch.zeros((), dtype=torch.int64))
    except (IndexError, RuntimeError) as problem:
        raise InputError(f"{model.name} cannot run on token numbers: {first_line(problem)}") from None
    finally:
        for hook in hooks:
            hook.remove()
    if not read:
        raise InputError(f"no embedding of {model.name} reads the token numbers themselves")
    weight = layers[read[0]].weight
    uses = sum(value is weight for _, value in module.named_parameters(remove_duplicate=False))
    return Lookup(read[0], uses > 1)


def over_embeddings(model: Model, lookup: Lookup) -> Model:
    """Return the network as a function of embeddings (L x d); its table becomes a buffer."""
    if isinstance(token_module(model).get_submodule(lookup.layer), nn.EmbeddingBag):
        raise InputError(f"{lookup.layer} of {model.name} is a bag of words: its sum shows neither order nor places")
    module = copy.deepcopy(token_module(model))
    weight = module.get_submodule(lookup.layer).weight
    if not isinstance(weight, nn.Parameter):
        raise InputError(f"{lookup.layer} of {model.name} has no table of weights")
    given = GivenEmbeddings(weight, padding_token(model))
    module.set_submodule(lookup.layer, given)
    module.register_forward_pre_hook(given.take, prepend=True)  # before hooks that read tokens in floating numbers
    table = {**model.parameters, **model.buffers}[lookup.weight]
    return replace(
        model,
        apply=replace(model.apply, module=module),  # type: ignore[type-var]  # a dataclass: it has a module
        parameters={name: value for name, value in model.parameters.items() if name != lookup.weight},
        buffers={**model.buffers, lookup.weight: table},
        input_shape=(*model.input_shape, table.shape[1]),
        entry=None,
    )


def table_of(seen: Round, lookup: Lookup) -> Tensor:
    """Return the rows (T x V x d) with which the clients began."""
    return seen.before[lookup.weight] if lookup.weight in seen.before else seen.buffers[lookup.weight]


def without_table(observation: Observation, lookup: Lookup) -> Observation:
    """Return the observation of the network over embeddings."""

    def rest(tree: Tree) -> Tree:
        return {name: value for name, value in tree.items() if name != lookup.weight}

    rounds = tuple(
        replace(
            seen,
            before=rest(seen.before),
            sent=rest(seen.sent),
            buffers={**seen.buffers, lookup.weight: table_of(seen, lookup)},
        )
        for seen in observation.rounds
    )
    return replace(observation, rounds=rounds)


def candidates(observation: Observation, lookup: Lookup) -> Tensor:
    """Return which tokens may occur (T x V): the rows of the table that moved in any round; all where it is not sent."""
    table = table_of(observation.rounds[0], lookup)
    if any(lookup.weight not in seen.sent for seen in observation.rounds):
        return torch.ones(table.shape[:2], dtype=torch.bool)
    possible = torch.zeros(table.shape[:2], dtype=torch.bool)
    for seen in observation.rounds:
        for trial in range(len(table)):
            bag = read_bag(take(seen, trial), observation.shares, lookup.weight, likely=lookup.tied)
            if bag is not None:
                possible[trial, bag.tokens] = True
    return possible | ~possible.any(1, keepdim=True)


def decode(embeddings: Tensor, table: Tensor, possible: Tensor) -> Tensor:
    """Return the token with the largest cosine to each embedding (T x N x L x d), among the possible ones (T x V)."""
    rows = nn.functional.normalize(table, dim=-1)
    scores = torch.einsum("tnld,tvd->tnlv", embeddings, rows)
    return scores.masked_fill(~possible[:, None, None], float("-inf")).argmax(-1)


def read_bag(seen: Round, shares: Shares, weight: str, *, likely: bool) -> Bag | None:
    """Return the tokens whose rows moved in one client's update, None if the table is not sent; `likely` if all rows moved."""
    if weight not in seen.sent:
        return None
    rows = seen.sent[weight].cpu()
    if shares is Shares.GRADIENT:
        return bag_of_gradient(rows, tied=likely)
    return bag_of_weights(seen.before[weight].cpu(), rows, tied=likely)


@dataclass(frozen=True, slots=True)
class Embedded:
    """The inner simulator on embeddings `scale * guess`, so that numbers of the guess have the size 1 for any table."""

    inner: Simulator
    scale: float | Tensor = 1.0

    def __call__(self, model: Model, unknowns: Tree, seen: Round, knowledge: Knowledge, clock: Clock) -> Simulated:
        """Return the simulated update."""
        guess = self.scale * unknowns[GUESS]
        if knowledge.real is not None:
            guess = torch.cat([guess, knowledge.real[..., None].to(guess)], dim=-1)
        return self.inner(model, {**unknowns, GUESS: guess}, seen, knowledge, clock)


def padding_token(model: Model) -> int | None:
    """Return the token that fills short sentences of a network, None if it names none."""
    module = token_module(model)
    return padding_of(module, module.get_submodule(find_lookup(model).layer))


def token_module(model: Model) -> nn.Module:
    """Return the network behind a `Model`; refuse a `Model` without one."""
    module: object = getattr(model.apply, "module", None)
    if not isinstance(module, nn.Module):
        raise InputError(f"attacks on tokens need a network made by from_module, got {model.name}")
    return module
