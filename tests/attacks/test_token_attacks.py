"""TAG and LAMP on token networks: the network over embeddings, the objective, the moves, and what comes back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.objectives import compares_lengths
from leakscope.attacks.priors import GUESS
from leakscope.attacks.simulate import OneGradient
from leakscope.attacks.tokens.embedded import Embedded, candidates, decode, find_lookup, over_embeddings, without_table
from leakscope.attacks.tokens.moves import Search, TokenMoves, moved, rearranged
from leakscope.attacks.tokens.token_attacks import TagMatch, TokenMatching, lamp, tag
from leakscope.attacks.view import Clock, Facts, Simulated, View
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import Tree, take
from leakscope.core.types import Knowledge, Observation, Round, Shares
from leakscope.learning.gradients import loss_and_gradient
from leakscope.learning.losses import cross_entropy, one_hot
from leakscope.models import bert, from_module, gpt

torch.set_num_threads(1)
WORDS, LENGTH, TRIALS = 30, 4, 2
TOKENS = torch.tensor([[[3, 17, 5, 9]], [[11, 2, 11, 28]]])  # T x N x L
LABELS = torch.tensor([[1], [0]])
ALONE = Execution(form="loop", dtype="float64")


def network(**changed: bool) -> nn.Module:
    torch.manual_seed(0)
    return bert(vocabulary=WORDS, positions=LENGTH, width=16, heads=2, depth=1, classes=2, **changed).double()


def observed(module: nn.Module, tokens: Tensor = TOKENS) -> tuple[Model, Observation, Knowledge]:
    sent = []
    for x, y in zip(tokens, LABELS, strict=True):
        module.zero_grad()
        nn.functional.cross_entropy(module(x), y.expand(len(x))).backward()
        sent.append({name: w.grad.clone() for name, w in module.named_parameters() if w.grad is not None})
    before = {name: w.detach().expand(TRIALS, *w.shape).clone() for name, w in module.named_parameters()}
    rounds = (Round(before, {}, {name: torch.stack([each[name] for each in sent]) for name in sent[0]}),)
    model = from_module(module, input_shape=(LENGTH,), example=tokens[0])
    labels = LABELS.expand(TRIALS, tokens.shape[1])
    knowledge = Knowledge((LENGTH,), 2, tokens.shape[1], labels=labels)
    return model, Observation(rounds, Shares.GRADIENT, torch.full((TRIALS,), tokens.shape[1])), knowledge


def search(attack: TokenMatching, seeds: list[int], execution: Execution = ALONE) -> Tensor:
    made = attack.run(*observed(network()), seeds, execution)
    return made.inputs


def test_at_the_true_embeddings_the_network_over_embeddings_has_the_clients_gradient() -> None:
    module = network()
    model, observation, _ = observed(module)
    lookup = find_lookup(model)
    assert lookup.layer == "embedding"
    embedded = over_embeddings(model, lookup)
    seen = without_table(observation, lookup).rounds[0]
    assert set(seen.sent) == set(embedded.parameters) == set(model.parameters) - {"embedding.weight"}
    embeddings = seen.buffers["embedding.weight"][0][TOKENS[0]]
    gradient, *_ = loss_and_gradient(
        embedded, cross_entropy, embedded.parameters, embedded.buffers, embeddings,
        one_hot(LABELS[0], 2, torch.float64), torch.ones(1, dtype=torch.bool), random.key(0),
    )  # fmt: skip
    for name, value in gradient.items():
        assert_close(value, seen.sent[name][0])


PADDED = torch.tensor([[[3, 17, 0, 0]], [[11, 2, 11, 0]]])


@pytest.mark.parametrize("causal", [False, True])
def test_with_the_places_of_tokens_known_the_network_over_embeddings_has_the_gradient_of_padded_sentences(
    causal: bool,
) -> None:
    torch.manual_seed(0)
    make = gpt if causal else bert
    module = make(vocabulary=WORDS, positions=LENGTH, width=16, heads=2, depth=2, classes=2, padding=0).double()
    model, observation, knowledge = observed(module, PADDED)
    lookup = find_lookup(model)
    embedded, seen = over_embeddings(model, lookup), without_table(observation, lookup)
    rows = seen.rounds[0].buffers["embedding.weight"]
    guess = torch.where((PADDED > 0)[..., None], rows[0][PADDED], torch.randn(*PADDED.shape, 16, dtype=torch.float64))

    def simulated(real: Tensor | None) -> Tree:
        known = take(replace(knowledge, real=real), 1)
        made = Embedded(OneGradient())(
            embedded, {GUESS: guess[1]}, take(seen.rounds[0], 1), known, Clock(torch.zeros(()), random.key(0))
        )
        return made.update

    told, untold = simulated(PADDED > 0), simulated(None)
    for name, value in told.items():
        assert_close(value, seen.rounds[0].sent[name][1])
    assert any(not torch.allclose(value, told[name]) for name, value in untold.items())


@pytest.mark.parametrize("attack", [tag(iterations=2), lamp(iterations=3, every=1, tries=3, starts=2, whole=2)])
def test_padding_comes_back_as_padding_and_no_token_stands_there(attack: TokenMatching) -> None:
    model, observation, knowledge = observed(network(padding=0), PADDED)  # type: ignore[arg-type]
    made = attack.run(model, observation, replace(knowledge, real=PADDED > 0), [0, 1], ALONE)
    assert torch.equal(made.inputs == 0, PADDED == 0)


@pytest.mark.parametrize("real", [torch.ones(2, 1, 3).bool(), torch.ones(2, 1, 4), PADDED < 0])
def test_places_that_do_not_fit_are_refused(real: Tensor) -> None:
    model, observation, knowledge = observed(network(padding=0), PADDED)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"Knowledge\.real must be"):
        tag(iterations=1).run(model, observation, replace(knowledge, real=real), [0, 1], ALONE)
    with pytest.raises(InputError, match="names padding"):
        tag(iterations=1).run(*observed(network())[:2], replace(knowledge, real=PADDED > 0), [0, 1], ALONE)


def test_a_tied_head_still_reads_the_table() -> None:
    module = gpt(vocabulary=WORDS, positions=LENGTH, width=16, heads=2, depth=1, tied=True)
    model = from_module(module, input_shape=(LENGTH,), example=TOKENS[0], any_output=True)
    lookup = find_lookup(model)
    assert lookup.tied
    embedded = over_embeddings(model, lookup)
    output, _ = embedded.apply(embedded.parameters, embedded.buffers, module.embedding(TOKENS[0]), random.key(0))
    assert_close(output, module(TOKENS[0]))


def test_a_network_without_tokens_is_refused() -> None:
    with pytest.raises(InputError, match="token"):
        find_lookup(from_module(nn.Linear(4, 2), input_shape=(4,)))


def test_a_loss_that_may_compare_with_the_tokens_is_refused() -> None:
    model, observation, knowledge = observed(network())
    own = replace(knowledge, loss=nn.functional.cross_entropy)
    with pytest.raises(InputError, match="loss"):
        tag().run(model, observation, own, [0, 1])


def test_candidates_are_the_rows_that_moved_and_all_without_the_table() -> None:
    model, observation, _ = observed(network())
    lookup = find_lookup(model)
    possible = candidates(observation, lookup)
    assert [row.nonzero()[:, 0].tolist() for row in possible] == [[3, 5, 9, 17], [2, 11, 28]]
    first = observation.rounds[0]
    rest = {name: value for name, value in first.sent.items() if name != lookup.weight}
    assert candidates(replace(observation, rounds=(replace(first, sent=rest),)), lookup).all()


def test_decoding_takes_the_nearest_of_the_possible_tokens() -> None:
    table = torch.eye(4)[None]
    embeddings = torch.tensor([[[[0.1, 5.0, 0.2, 0.3]]]])
    possible = torch.tensor([[True, True, True, True]])
    assert decode(embeddings, table, possible).tolist() == [[[1]]]
    possible[0, 1] = False
    assert decode(embeddings, table, possible).tolist() == [[[3]]]


@pytest.mark.parametrize("alpha", [0.0, 0.01, 2.0])
def test_tags_objective_is_its_formula(alpha: float) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = ({name: torch.randn(3, 2, generator=generator).double() for name in "xyz"} for _ in range(2))
    expected = sum(
        float((a[name] - b[name]).square().sum() + alpha * weight * (a[name] - b[name]).abs().sum())
        for name, weight in zip("xyz", (1, 2 / 3, 1 / 3), strict=True)
    )
    nothing = torch.zeros(())
    view = View({}, Simulated(a, nothing, nothing), b, Round({}, {}, b), Knowledge((2,), 2, 1), Clock(nothing, nothing))
    assert_close(float(TagMatch(alpha)(view)), expected)
    assert compares_lengths(TagMatch(alpha))


def test_tag_matches_the_gradient_and_returns_tokens_of_the_bag() -> None:
    made = tag(iterations=30).run(*observed(network()), [0, 1], ALONE)
    assert bool((made.mismatch < made.trace[:, 0] / 4).all())
    for tokens, bag in zip(made.inputs.long(), TOKENS, strict=True):
        assert set(tokens.flatten().tolist()) <= set(bag.flatten().tolist())


@pytest.mark.slow
def test_lamp_recovers_whole_sentences() -> None:
    attack = lamp(iterations=30, every=10, tries=5, starts=5, whole=100)
    assert torch.equal(search(attack, [0, 1]).long(), TOKENS)


def test_the_vmapped_form_agrees_with_a_plain_loop() -> None:
    attack = lamp(iterations=4, every=2, tries=1, starts=1, whole=2)
    one, other = (attack.run(*observed(network()), [0, 1], replace(ALONE, form=each)) for each in ("loop", "native"))
    assert_close(one.mismatch, other.mismatch)
    assert torch.equal(one.inputs, other.inputs)


@given(
    drawn=st.lists(st.floats(0, 1, exclude_max=True), min_size=6, max_size=6),
    places=st.sampled_from([[[0, 1, 2, 3, 4]], [[0, 1, 2], [5, 6], [10]]]),
)
def test_a_move_exchanges_the_tokens_of_real_places(drawn: list[float], places: list[list[int]]) -> None:
    move = moved(places, drawn)
    assert sorted(move) == sorted(move.values())
    assert set(move) <= {place for sentence in places for place in sentence}


def test_the_kinds_of_moves() -> None:
    def order(places: list[list[int]], *drawn: float) -> list[int]:
        move = moved(places, list(drawn))
        return [move.get(place, place) for place in range(4)]

    assert order([[0, 1, 2, 3]], 0.2, 0, 0, 0.75, 0, 0) == [1, 2, 3, 0]  # one token
    assert order([[0, 1, 2, 3]], 0.4, 0, 0.25, 0.5, 0, 0) == [1, 2, 0, 3]  # a run
    assert order([[0, 1, 2, 3]], 0.6, 0, 0.25, 0, 0, 0) == [1, 2, 3, 0]  # a prefix
    assert order([[0, 1], [2, 3]], 0.8, 0, 0, 0.5, 0.5, 0) == [3, 1, 2, 0]  # between sentences
    assert order([[0, 2]], 0.0, 0, 0, 0.99, 0, 0) == [2, 1, 0, 3]  # place 1 is padding


def moves(**changed: object) -> TokenMoves:
    settings = {"every": 10, "tries": 60, "starts": 0} | changed
    table = torch.eye(WORDS).double().expand(TRIALS, -1, -1)
    possible = torch.zeros(TRIALS, WORDS, dtype=torch.bool)
    possible[:, [0, *TOKENS.flatten().tolist()]] = True
    return TokenMoves(Search(**settings), table, possible, 100)  # type: ignore[arg-type]


def facts() -> Facts:
    return Facts(None, None, None, random.key([4, 5]))  # type: ignore[arg-type]


def rows_of(tokens: Tensor) -> Tree:
    return {"guess": torch.eye(WORDS).double()[tokens]}


def errors(unknowns: Tree) -> Tensor:
    return (unknowns["guess"].argmax(-1) != TOKENS).sum((1, 2)).double()


def test_moves_find_the_order_that_the_objective_prefers() -> None:
    mixed = rows_of(TOKENS.flip(-1))
    assert errors(moves()(mixed, facts(), 20, errors)).tolist() == [0, 0]
    assert errors(mixed).min() > 0


def test_without_an_objective_the_language_model_orders_the_tokens() -> None:
    def rising(tokens: Tensor) -> Tensor:
        return -(tokens[:, 1:] < tokens[:, :-1]).double().sum(1)

    made = moves(likelihood=rising, tries=100)(rows_of(TOKENS), facts(), 20, lambda _: torch.zeros(2).double())
    tokens = made["guess"].argmax(-1)
    assert tokens.tolist() == TOKENS.sort(-1).values.tolist()
    weightless = moves(likelihood=rising, perplexity=0.0)(rows_of(TOKENS), facts(), 20, lambda _: torch.zeros(2))
    assert weightless["guess"].argmax(-1).tolist() == TOKENS.tolist()


def test_the_last_search_replaces_tokens_and_never_makes_the_objective_worse() -> None:
    wrong = TOKENS.clone()
    wrong[:, 0, 1] = 0
    made = moves(whole=400)(rows_of(wrong), facts(), 100, errors)
    assert errors(made).tolist() == [0, 0]
    assert errors(moves(whole=30)(rows_of(TOKENS), facts(), 100, errors)).tolist() == [0, 0]


def test_a_trial_moves_the_same_alone_and_among_others() -> None:
    guess = torch.randn(2, 1, 4, 3, generator=torch.Generator().manual_seed(0))
    drawn = random.uniform(random.key([4, 5]), (6,))
    assert torch.equal(rearranged(guess, drawn)[1:], rearranged(guess[1:], drawn[1:]))


def test_an_interrupted_search_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    attack = lamp(iterations=8, every=3, tries=2, starts=2)
    whole = search(attack, [0, 1])
    stored = replace(ALONE, directory=tmp_path, save_every=0.0)
    with pytest.raises(KeyboardInterrupt):
        search(attack, [0, 1], replace(stored, progress=Interrupt(after=5)))
    assert torch.equal(search(attack, [0, 1], stored), whole)


class Interrupt:
    def __init__(self, after: int) -> None:
        self.after = after

    def __call__(self, now: object) -> None:
        if now.iteration >= self.after:  # type: ignore[attr-defined]
            raise KeyboardInterrupt


def test_wrong_settings_are_named() -> None:
    with pytest.raises(InputError):
        tag(alpha=-1)
    with pytest.raises(InputError):
        lamp(rate=0)
    with pytest.raises(InputError):
        lamp(tries=-1)
    with pytest.raises(InputError):
        lamp(every=0)
