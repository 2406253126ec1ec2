"""TAG and LAMP: match the update in the embeddings of the tokens, then choose the nearest tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from leakscope.attacks.attack import Matching
from leakscope.attacks.distances import Distance, cosine_per_tensor
from leakscope.attacks.engine.plan import DEFAULT, Execution
from leakscope.attacks.engine.state import Stop
from leakscope.attacks.objectives import Match
from leakscope.attacks.optimisers import Adam, Rule
from leakscope.attacks.optimisers.rules import Exponential
from leakscope.attacks.priors import GUESS
from leakscope.attacks.starts import Normal
from leakscope.attacks.tokens.embedded import (
    Embedded,
    candidates,
    decode,
    find_lookup,
    over_embeddings,
    padding_token,
    table_of,
    without_table,
)
from leakscope.attacks.tokens.moves import Likelihood, Search, TokenMoves
from leakscope.attacks.view import Objective, View
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.scaling import Scaling
from leakscope.core.tree import squared_norm, subtract
from leakscope.core.types import Knowledge, Observation, Reconstruction, Seeds


@dataclass(frozen=True, slots=True)
class TagMatch:
    """`sum_l |s_l - o_l|^2 + alpha c_l |s_l - o_l|_1` over the K tensors l of an update, c_l = 1, ..., 1 / K (TAG, Eq. 3).

    Deng et al. 2021 let the weight of a layer fall from the first to the last; a straight line as in breaching.
    """

    alpha: float = 0.01

    needs: ClassVar[tuple[str, ...]] = ()
    sees_length: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < math.inf:
            raise InputError(f"TagMatch.alpha must be in [0, inf), got {self.alpha}")

    def __call__(self, view: View) -> Tensor:
        """Return the mismatch of one trial in one round."""
        off = subtract(view.simulated.update, view.observed)
        absolute = [(1 - i / len(off)) * value.abs().sum() for i, value in enumerate(off.values())]
        return squared_norm(off) + self.alpha * torch.stack(absolute).sum()


@dataclass(frozen=True, slots=True)
class RowLength:
    """`weight * (mean length of the guessed embeddings / that of the table's rows - 1)^2` (LAMP, Eq. 5)."""

    weight: float | Tensor = 2.0

    def __call__(self, view: View) -> Tensor:
        """Return the penalty."""
        guess = view.unknowns[GUESS]
        length: Tensor = guess.norm(dim=-1).mean() / math.sqrt(guess.shape[-1])
        return self.weight * (length - 1).square()


@dataclass(frozen=True, slots=True)
class TokenMatching:
    """An attack on a network over L token numbers: `matching` in embeddings, `search` between iterations, the nearest tokens.

    The result's `inputs` are token numbers (T x N x L) as floats, as clients hold them; padding stands where `Knowledge.real` has none,
    and without it every place is taken for a token. The guess is in units of the table's rows, so
    rates do not depend on their length. Only tokens whose rows moved are chosen, where the table is sent.
    """

    matching: Matching
    search: Search | None = None

    @property
    def name(self) -> str:
        """Return the name results are listed under."""
        return self.matching.name

    def run(
        self, model: Model, observation: Observation, knowledge: Knowledge, seeds: Seeds, execution: Execution = DEFAULT
    ) -> Reconstruction:
        """Return the tokens of every trial."""
        lookup = find_lookup(model)
        table, possible = table_of(observation.rounds[0], lookup), candidates(observation, lookup)
        padding, real = padding_token(model), knowledge.real
        matching, embedded, seen, known = self.over_embeddings(model, observation, knowledge)
        found = matching.run(embedded, seen, known, seeds, execution)

        def tokens(guess: Tensor) -> Tensor:
            decoded = decode(guess, table.to(guess), possible).to(guess)
            return decoded if real is None or padding is None else decoded.where(real.to(decoded.device), padding)

        films = [tokens(film) for film in found.snapshots.nan_to_num().unbind(1)]
        return replace(
            found, inputs=tokens(found.inputs), start=tokens(found.start), snapshots=torch.stack(films, dim=1)
        )

    def over_embeddings(
        self, model: Model, observation: Observation, knowledge: Knowledge
    ) -> tuple[Matching, Model, Observation, Knowledge]:
        """Return the matching attack that `run` runs: on the network over embeddings and the update without the table."""
        if not isinstance(knowledge.loss, str):  # its targets may be the tokens themselves
            raise InputError(
                f"{self.name} needs a loss over classes by name, such as 'cross_entropy', got {knowledge.loss}"
            )
        check_real(model, knowledge, observation.trials)
        lookup = find_lookup(model)
        table, embedded = table_of(observation.rounds[0], lookup), over_embeddings(model, lookup)
        scale = table.norm(dim=-1).mean(-1) / math.sqrt(table.shape[-1])
        matching = replace(self.matching, simulate=Embedded(self.matching.simulate, scale))
        if self.search is not None:
            moves = TokenMoves(
                self.search,
                table / scale[:, None, None],
                candidates(observation, lookup),
                matching.stop.iterations,
                knowledge.real,
            )
            matching = replace(matching, moves=moves)
        known = replace(knowledge, input_shape=embedded.input_shape, scaling=Scaling())
        return matching, embedded, without_table(observation, lookup), known


def check_real(model: Model, knowledge: Knowledge, trials: int) -> None:
    """Refuse places of tokens that do not fit the network or leave a sentence without a token."""
    real, shape = knowledge.real, (trials, knowledge.samples, *model.input_shape)
    if real is None:
        return
    if padding_token(model) is None:
        raise InputError(f"Knowledge.real names padding, and {model.name} has none")
    if real.shape != shape or real.dtype != torch.bool or not bool(real.any(-1).all()):
        raise InputError(
            f"Knowledge.real must be {shape} of bool with a token in each sentence, got {tuple(real.shape)} of {real.dtype}"
        )


def tag(
    *, alpha: float = 0.01, rate: float = 0.5, labels: str = "auto", iterations: int = 2500, restarts: int = 1
) -> TokenMatching:
    """TAG (Deng et al. 2021): squared differences of gradients and `alpha` times absolute ones, Adam in the embeddings.

    Equation: `min over x of sum_l |g_l(x) - g_l|^2 + alpha c_l |g_l(x) - g_l|_1`, c_l from 1 to 0 over the layers.
    Reference: Deng et al. 2021, TAG, arXiv:2103.06819; alpha and iterations as in LAMP's comparison, the rate a quarter of it.
    Works when: a transformer's gradient of one or few short sentences; any loss over classes.
    Costs: 2500 evaluations with a second derivative.
    """
    return TokenMatching(_embedding_attack("tag", TagMatch(alpha), rate, labels, iterations, restarts))


def lamp(
    *,
    distance: Distance = cosine_per_tensor,
    rate: float = 0.2,
    length: float = 2.0,
    perplexity: float = 0.2,
    likelihood: Likelihood | None = None,
    every: int = 75,
    tries: int = 200,
    starts: int = 500,
    whole: int = 0,
    labels: str = "auto",
    iterations: int = 2000,
    restarts: int = 1,
) -> TokenMatching:
    """LAMP (Balunovic et al. 2022): embeddings of the table's length, and moves of tokens scored with a language model.

    `starts` fresh guesses are tried first and `tries` moves after `every` iterations. `whole` steps of a search among whole tokens end
    the attack; the authors have none. `likelihood` is a language model of yours, from K x L token numbers to K log-likelihoods; without
    one the update alone decides.

    Equation: `min over x of mean_l 1 - cos(g_l(x), g_l) + length (mean |x_i| / mean |e_v| - 1)^2`, with moves that lower
    `mismatch + perplexity * (mean negative log-likelihood of a token)`.
    Reference: Balunovic et al. 2022, LAMP, arXiv:2202.08827.
    Works when: as tag; a language model of the same tokens helps the order of words.
    Costs: 2000 evaluations with a second derivative, and `tries` of the gradient alone after every 75 of them.
    """
    attack = _embedding_attack("lamp", Match(distance), rate, labels, iterations, restarts)
    search = Search(every, tries, starts, whole, perplexity, likelihood)
    return TokenMatching(replace(attack, priors=(RowLength(length),)), search)


def _embedding_attack(
    name: str, objective: Objective, rate: float, labels: str, iterations: int, restarts: int
) -> Matching:
    """Return the part that TAG and LAMP share: Adam on embeddings, the rate times 0.89 after every fortieth (LAMP: 50 of 2000)."""
    if not rate > 0:
        raise InputError(f"{name}(rate=...) must be above 0, got {rate}")
    return Matching(
        name,
        start=Normal(),
        objective=objective,
        labels=labels,
        optimiser=Adam(rate),
        rules={GUESS: Rule(schedule=Exponential(0.89, max(1, iterations // 40)))},
        stop=Stop(iterations=iterations),
        restarts=restarts,
    )


TOKEN_ATTACKS: dict[str, Callable[..., TokenMatching]] = {"tag": tag, "lamp": lamp}  # of networks over token numbers
