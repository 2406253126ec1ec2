"""The span test: sentences come back exactly where the algebra says so, from gradients, weights and low-rank adapters, and no others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from leakscope.attacks.exact.dense_readers import find_shared_inputs, token_network
from leakscope.attacks.exact.embedding_rows import bag_of_gradient
from leakscope.attacks.exact.masked_span import Subspace, decode_masks
from leakscope.attacks.exact.sentence_proof import proved_sentences
from leakscope.attacks.exact.span_test import SpanEnd, SpanReading, span_test
from leakscope.attacks.exact.span_test import _cut_outside as cut_outside
from leakscope.attacks.exact.spans import span_of
from leakscope.core.errors import InputError
from leakscope.core.tree import Tree
from leakscope.core.types import Round, Shares
from leakscope.models import TextTransformer, adapt, bert, gpt

torch.set_num_threads(1)
VOCABULARY, LENGTH = 150, 6


def sentences(batch: int, seed: int = 0, length: int = LENGTH) -> Tensor:
    """Return Zipf tokens."""
    chance = 1 / torch.arange(1, VOCABULARY + 1).double()
    generator = torch.Generator().manual_seed(seed)
    return torch.multinomial(chance, batch * length, replacement=True, generator=generator).reshape(batch, length)


def network(
    make: Callable[..., TextTransformer] = gpt, dtype: torch.dtype = torch.float64, **given: object
) -> TextTransformer:
    torch.manual_seed(0)
    settings = {"vocabulary": VOCABULARY, "positions": LENGTH, "width": 64, "classes": 2} | given
    return make(**settings).to(dtype)


def loss_of(module: nn.Module, x: Tensor) -> Tensor:
    output = module(x)
    if output.ndim == 3:
        return nn.functional.cross_entropy(output[:, :-1].flatten(0, 1), x[:, 1:].flatten())
    return nn.functional.cross_entropy(output, torch.arange(len(x)) % 2)


def weights_of(module: nn.Module) -> Tree:
    return {name: value.detach().clone() for name, value in module.named_parameters()}


def gradient_of(module: nn.Module, x: Tensor) -> Tree:
    module.zero_grad()
    loss_of(module, x).backward()
    return {name: value.grad.clone() for name, value in module.named_parameters() if value.grad is not None}


def read_gradient(module: nn.Module, x: Tensor, noise: float = 0.0) -> SpanReading:
    seen = Round(weights_of(module), {}, gradient_of(module, x))
    return span_test(module, seen, Shares.GRADIENT, vocabulary=VOCABULARY, length=LENGTH, noise=noise)


def rows(x: Tensor) -> set[tuple[int, ...]]:
    return {tuple(row) for row in x.tolist()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [1, 4, 8])
def test_every_sentence_of_a_classifiers_batch_comes_back_and_no_other(batch: int, dtype: torch.dtype) -> None:
    x = sentences(batch)
    reading = read_gradient(network(dtype=dtype), x)
    assert reading.end is SpanEnd.SENTENCES
    assert set(reading.sentences) == set(reading.proved) == rows(x)
    assert reading.rank <= batch * LENGTH < reading.width


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sentences_that_training_has_almost_fitted_come_back_beside_others(seed: int) -> None:
    x, weights = sentences(3, seed), torch.tensor([1, 1e-5, 1e-9], dtype=torch.float64)
    module = network()
    loss = nn.functional.cross_entropy(module(x), torch.arange(3) % 2, reduction="none")
    values = torch.autograd.grad((weights * loss).sum(), list(module.parameters()))
    sent = dict(zip(weights_of(module), values, strict=True))
    seen = Round(weights_of(module), {}, sent)
    reading = span_test(module, seen, Shares.GRADIENT, vocabulary=VOCABULARY, length=LENGTH)
    assert set(reading.sentences) == set(reading.proved) == rows(x)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_an_encoders_float32_update_gives_its_sentences_by_the_rows_that_moved(seed: int) -> None:
    module, x = network(bert, torch.float32), sentences(2, seed)
    reading = read_gradient(module, x)
    assert set(reading.sentences) == set(reading.proved) == rows(x)


def proof_of(module: nn.Module, x: Tensor, found: list[Tensor]) -> tuple[set[tuple[int, ...]], set[tuple[int, ...]]]:
    """Return what a gradient of `x` allows and proves of the sentences found, by the first layer behind attention."""
    weights, gradient = weights_of(module), gradient_of(module, x)
    network = token_network(module, weights)
    source = next(s for s in find_shared_inputs(network, weights.keys(), VOCABULARY, LENGTH) if s.mixes)
    rows_ = source.rows(gradient)
    floor = 1e-11 * float(torch.linalg.matrix_norm(rows_, 2))
    kept, proved = proved_sentences(network, source, rows_, floor, [tuple(each.tolist()) for each in found])
    return set(kept), set(proved)


@pytest.mark.parametrize("make", [gpt, bert])
def test_a_false_sentence_among_all_true_ones_is_left_out_and_never_proved(
    make: Callable[..., TextTransformer],
) -> None:
    x = sentences(3)
    swapped = torch.cat([x[0, :3], x[1, 3:]])
    kept, proved = proof_of(network(make), x, [swapped, *x, x[2, :2].flip(0)])
    assert kept == proved == rows(x)


def test_nothing_is_proved_while_a_sentence_is_missing() -> None:
    x = sentences(3)
    swapped = torch.cat([x[0, :3], x[1, 3:]])
    kept, proved = proof_of(network(), x, [swapped, x[0], x[1]])
    assert kept == rows(torch.stack([swapped, x[0], x[1]]))
    assert proved == set()


def test_a_wrong_token_behind_a_true_sentence_is_cut_off_and_never_proved() -> None:
    x = sentences(3)
    longer = torch.cat([x[0, :4], (x[0, 4:5] + 1) % VOCABULARY])
    module = network()
    weights, gradients = weights_of(module), [gradient_of(module, part) for part in (x[:1, :4], x[1:])]
    total = {name: gradients[0][name] + gradients[1][name] for name in gradients[0]}
    network_ = token_network(module, weights)
    source = next(s for s in find_shared_inputs(network_, weights.keys(), VOCABULARY, LENGTH) if s.mixes)
    rows_ = source.rows(total)
    floor = 1e-11 * float(torch.linalg.matrix_norm(rows_, 2))
    found = [tuple(each.tolist()) for each in (longer, x[1], x[2])]
    kept, proved = proved_sentences(network_, source, rows_, floor, found)
    assert set(kept) == set(proved) == {found[0][:4], *found[1:]}


def test_the_length_of_one_repeated_token_under_rotary_positions_is_not_proved() -> None:
    module = network(kind="rotary")
    reading = read_gradient(module, torch.full((1, 4), 7))
    assert (7, 7, 7, 7) not in reading.proved
    assert reading.proved == ()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_an_encoder_that_hides_the_order_proves_no_false_order(seed: int) -> None:
    x = sentences(2, seed)
    reading = read_gradient(network(bert, torch.float32, kind="rotary"), x)
    assert set(reading.proved) <= rows(x)


def test_a_rival_in_the_place_of_a_sentence_disproves_it() -> None:
    module, x = network(bert), sentences(2)
    weights, gradient = weights_of(module), gradient_of(module, x)
    network_ = token_network(module, weights)
    source = next(s for s in find_shared_inputs(network_, weights.keys(), VOCABULARY, LENGTH) if s.mixes)
    rows_ = source.rows(gradient)
    loose = 0.2 * float(torch.linalg.svdvals(rows_)[0])  # noise in which neighbours explain the update as well
    found = [tuple(each) for each in x.tolist()]
    candidates = [torch.arange(VOCABULARY)] * LENGTH
    sharp = 1e-11 * float(torch.linalg.svdvals(rows_)[0])
    assert set(proved_sentences(network_, source, rows_, sharp, found, candidates)[1]) == set(found)
    assert proved_sentences(network_, source, rows_, loose, found, candidates)[1] == ()


@pytest.mark.parametrize("tied", [False, True])
def test_a_language_model_hides_the_last_token_only(tied: bool) -> None:
    x = sentences(4)
    assert set(read_gradient(network(classes=None, tied=tied), x).sentences) == rows(x[:, :-1])


@pytest.mark.parametrize("pre_norm", [True, False])
def test_two_blocks_are_enough_with_the_layer_of_most_room(pre_norm: bool) -> None:
    x = sentences(4)
    assert set(read_gradient(network(depth=2, pre_norm=pre_norm), x).sentences) == rows(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_after_a_step_give_what_a_gradient_gives(dtype: torch.dtype) -> None:
    module, x = network(dtype=dtype), sentences(4)
    before, gradient = weights_of(module), gradient_of(module, x)
    seen = Round(before, {}, {name: before[name] - 0.1 * gradient[name] for name in gradient})
    reading = span_test(module, seen, Shares.WEIGHTS, vocabulary=VOCABULARY, length=LENGTH)
    assert set(reading.sentences) == rows(x)


def test_float32_rounding_does_not_let_two_sentences_with_swapped_beginnings_swap_their_rests() -> None:
    module, x = network(dtype=torch.float32, width=96, positions=8), sentences(8, length=8)
    x[0, :2], x[1, :2] = torch.tensor([0, 5]), torch.tensor([5, 0])
    seen = Round(weights_of(module), {}, gradient_of(module, x))
    assert set(span_test(module, seen, Shares.GRADIENT, vocabulary=VOCABULARY, length=8).sentences) == rows(x)


def test_sentences_of_unequal_length_end_where_they_end() -> None:
    module, x = network(), sentences(2, seed=3)
    gradients = [gradient_of(module, x[:1]), gradient_of(module, x[1:, :4])]
    total = {name: gradients[0][name] + gradients[1][name] for name in gradients[0]}
    reading = span_test(
        module, Round(weights_of(module), {}, total), Shares.GRADIENT, vocabulary=VOCABULARY, length=LENGTH
    )
    assert set(reading.sentences) == {tuple(x[0].tolist()), tuple(x[1, :4].tolist())}


@pytest.mark.parametrize(("make", "dropout"), [(gpt, 0.0), (bert, 0.0), (gpt, 0.1)])
def test_time_that_is_over_cuts_the_test_and_proves_nothing_false(
    make: Callable[..., TextTransformer], dropout: float
) -> None:
    """The clock is looked at in every loop; `ends` is the look from which on the time is over."""
    x = sentences(2)
    module = network(make, dropout=dropout)
    seen = Round(weights_of(module), {}, gradient_of(module.train(), x))
    for ends in (1, 2, 3, 4, 5, 8, 13, 21):
        looks: list[int] = []

        def over(looks: list[int] = looks, ends: int = ends) -> bool:
            looks.append(1)
            return len(looks) >= ends

        reading = span_test(module, seen, Shares.GRADIENT, vocabulary=VOCABULARY, length=LENGTH, over=over)
        assert len(looks) <= ends + 3
        assert set(reading.proved) <= rows(x)
        assert (reading.end is SpanEnd.CUT) is (len(looks) >= ends)


def read_dropped(module: nn.Module, x: Tensor) -> SpanReading:
    seen = Round(weights_of(module), {}, gradient_of(module.train(), x))
    return span_test(module, seen, Shares.GRADIENT, vocabulary=VOCABULARY, length=LENGTH)


@pytest.mark.parametrize("given", [{}, {"pre_norm": False}, {"classes": None}, {"dtype": torch.float32}])
def test_the_masks_of_dropout_are_solved_for(given: dict[str, object]) -> None:
    x = sentences(2)
    x[1, 0] = x[0, 0]  # a copy, with a mask of its own
    reading = read_dropped(network(dropout=0.1, **given), x)  # type: ignore[arg-type]
    assert reading.end is SpanEnd.MASKED
    assert set(reading.sentences) == rows(x if "classes" not in given else x[:, :-1])
    assert reading.proved == ()


def test_an_encoders_masks_give_the_tokens_by_position_and_one_sentence_whole() -> None:
    x = sentences(2)
    reading = read_dropped(network(bert, dropout=0.1), x)
    assert reading.end is SpanEnd.MASKED_TOKENS
    assert [set(tokens.tolist()) for tokens in reading.candidates] == [set(column) for column in x.T.tolist()]
    assert read_dropped(network(bert, dropout=0.1), x[:1]).sentences == (tuple(x[0].tolist()),)


def test_masks_of_too_many_tokens_give_nothing_false_and_the_bag_of_words_is_left() -> None:
    module, x = network(dropout=0.3), sentences(7)
    reading = read_dropped(module, x)
    passed = {(int(token), p) for p, tokens in enumerate(reading.candidates) for token in tokens}
    assert reading.end in (SpanEnd.NOTHING, SpanEnd.MASKED_TOKENS)
    assert passed <= {(token, p) for sentence in x.tolist() for p, token in enumerate(sentence)}
    assert bag_of_gradient(gradient_of(module, x)["embedding.weight"]).tokens.tolist() == x.unique().tolist()


def test_a_network_in_eval_mode_has_no_masks() -> None:
    module, x = network(dropout=0.1).eval(), sentences(2)
    assert set(read_gradient(module, x).proved) == rows(x)


def test_a_mask_is_decoded_and_a_wrong_target_is_not_sure() -> None:
    generator = torch.Generator().manual_seed(0)
    target = torch.randn(3, 40, generator=generator, dtype=torch.float64)
    masks = torch.rand(2, 40, generator=generator) >= 0.2
    fixed = torch.randn(40, generator=generator, dtype=torch.float64)
    points = torch.cat([fixed + masks * target[:2], torch.randn(8, 40, generator=generator, dtype=torch.float64)])
    left = torch.linalg.svd(points.mT).U
    where = Subspace(left[:, :10], lambda x: (x @ left[:, 10:]).norm(dim=-1) / x.norm(dim=-1), 1e-9)
    found, sure = decode_masks(target, fixed, 0.2, where)
    assert sure.tolist() == [True, True, False]
    assert torch.equal(found[:2], masks)


def test_more_tokens_than_the_width_leave_no_room() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(VOCABULARY, (40, LENGTH), generator=generator)
    reading = read_gradient(network(), x)
    assert reading.end is SpanEnd.NO_ROOM
    assert reading.rank > reading.width - 8


def test_known_noise_below_the_gradient_is_allowed_for() -> None:
    module, x = network(), sentences(1)
    gradient, generator = gradient_of(module, x), torch.Generator().manual_seed(0)
    noise = 1e-9
    noisy = {
        name: value + noise * torch.randn(value.shape, generator=generator, dtype=value.dtype)
        for name, value in gradient.items()
    }
    seen = Round(weights_of(module), {}, noisy)
    told = span_test(module, seen, Shares.GRADIENT, vocabulary=VOCABULARY, length=LENGTH, noise=noise)
    untold = span_test(module, seen, Shares.GRADIENT, vocabulary=VOCABULARY, length=LENGTH)
    assert set(told.sentences) == rows(x)
    assert untold.sentences == ()


@pytest.mark.parametrize("given", [{}, {"pre_norm": True}, {"classes": None}, {"kind": "sinusoidal"}])
def test_an_encoder_gives_its_sentences_whole(given: dict[str, object]) -> None:
    x = sentences(2)
    reading = read_gradient(network(bert, **given), x)
    assert reading.end is SpanEnd.SENTENCES
    assert set(reading.sentences) == set(reading.proved) == rows(x)


@pytest.mark.parametrize("given", [{"kind": "sinusoidal"}, {"kind": "rotary"}, {"kind": "rotary", "pre_norm": False}])
def test_every_kind_of_position_gives_the_sentences(given: dict[str, object]) -> None:
    x = sentences(3)
    reading = read_gradient(network(**given), x)
    assert set(reading.proved) == rows(x)
    bag = [set(tokens.tolist()) for tokens in reading.candidates]
    assert all(each == bag[0] for each in bag) is (given["kind"] == "rotary")


@pytest.mark.parametrize("make", [gpt, bert])
def test_a_masked_batch_gives_sentences_of_their_own_lengths_and_no_padding(
    make: Callable[..., TextTransformer],
) -> None:
    x = 1 + sentences(3, seed=3) % (VOCABULARY - 1)
    x[1, 4:], x[2, 2:] = 0, 0
    module = network(make, padding=0)
    reading = read_gradient(module, x)
    assert set(reading.proved) == {tuple(token for token in row if token) for row in x.tolist()}
    assert 0 not in bag_of_gradient(gradient_of(module, x)["embedding.weight"]).tokens


def adapted_reading(
    x: Tensor, *, rank: int, steps: int, optimiser: type[torch.optim.Optimizer] = torch.optim.SGD
) -> SpanReading:
    module = adapt(network(), rank=rank)
    before, trained = weights_of(module), [value for value in module.parameters() if value.requires_grad]
    stepper = optimiser(trained, lr=0.1 if optimiser is torch.optim.SGD else 1e-3)  # type: ignore[call-arg]
    for _ in range(steps):
        gradient_of(module, x)
        stepper.step()
    sent = {
        name: value for name, value in weights_of(module).items() if name.endswith(("inner.weight", "outer.weight"))
    }
    closest = None if steps == 1 else len(x)
    return span_test(
        module, Round(before, {}, sent), Shares.WEIGHTS, vocabulary=VOCABULARY, length=LENGTH, closest=closest
    )


@pytest.mark.parametrize(("batch", "rank"), [(1, 4), (2, 8)])
def test_ten_steps_on_adapters_give_every_sentence_within_the_budget(batch: int, rank: int) -> None:
    x = sentences(batch, seed=1)
    reading = adapted_reading(x, rank=rank, steps=10)
    assert reading.budget == 2 * rank >= batch * LENGTH
    assert reading.end is SpanEnd.CLOSEST
    assert reading.proved == ()
    assert set(reading.sentences) == rows(x)


def test_fresh_adapters_a_small_budget_and_adamw_give_nothing() -> None:
    x = sentences(1, seed=1)
    assert adapted_reading(x, rank=4, steps=1).end is SpanEnd.NO_UPDATE
    assert adapted_reading(x, rank=2, steps=10).end is SpanEnd.NOTHING
    assert adapted_reading(x, rank=4, steps=5, optimiser=torch.optim.AdamW).end is SpanEnd.NOTHING


class OwnAdapter(nn.Module):
    """A low-rank adapter written by hand: two matrices and a product, no dense layers."""

    def __init__(self, dense: nn.Module) -> None:
        super().__init__()
        self.dense = dense.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(24, 64, dtype=torch.float64) / 8)
        self.B = nn.Parameter(torch.randn(24, 64, dtype=torch.float64) / 8)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.dense(x) + x @ self.A.T @ self.B
        return output


def test_adapters_written_by_hand_give_the_sentences_that_dense_layers_give() -> None:
    module, x = network().requires_grad_(False), sentences(1, seed=1)
    for name, layer in list(module.named_modules()):
        if isinstance(layer, nn.Linear) and name.endswith(("query", "value")):
            parent, _, own = name.rpartition(".")
            setattr(module.get_submodule(parent), own, OwnAdapter(layer))
    sent = gradient_of(module, x)
    assert {name[-2:] for name in sent} == {".A", ".B"}
    sources = find_shared_inputs(token_network(module, weights_of(module)), sent, VOCABULARY, LENGTH)
    assert sources[0].weights == tuple(name for name in sent if name.endswith(".A"))[:2]
    assert [each.columns for each in sources[:2]] == [frozenset(), frozenset({sources[1].weights[0]})]
    reading = read_gradient(module, x)
    assert set(reading.sentences) == set(reading.proved) == rows(x)


class Encoder(nn.Module):
    """torch's own encoder, whose projections are one matrix and whose layers are skipped on a fast path."""

    def __init__(self, *, batch_first: bool = True) -> None:
        super().__init__()
        self.embedding, self.batch_first = nn.Embedding(VOCABULARY, 64), batch_first
        self.places = nn.Parameter(torch.randn(LENGTH, 64))
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=batch_first)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=batch_first), nn.Linear(64, 2)

    def forward(self, x: Tensor) -> Tensor:
        states = self.embedding(x) + self.places[: x.shape[1]]
        states = states if self.batch_first else states.transpose(0, 1)
        states = self.encoder(states, src_key_padding_mask=x == -1)
        output: Tensor = self.head(states.mean(1 if self.batch_first else 0))
        return output


@pytest.mark.parametrize("batch_first", [True, False])
def test_an_encoder_of_torch_gives_its_sentences(batch_first: bool) -> None:
    torch.manual_seed(0)
    module, x = Encoder(batch_first=batch_first).double().eval(), sentences(2)
    reading = read_gradient(module, x)
    assert set(reading.sentences) == set(reading.proved) == rows(x)
    assert torch.backends.mha.get_fastpath_enabled()


class Conv1D(nn.Module):
    """A dense layer with its weight as d x o, as in `transformers`."""

    def __init__(self, dense: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(dense.weight.detach().mT.clone()), dense.bias

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


def test_transposed_dense_layers_are_read_as_well() -> None:
    module, x = network(), sentences(4)
    for name, layer in list(module.named_modules()):
        if isinstance(layer, nn.Linear) and name != "head":
            module.set_submodule(name, Conv1D(layer))
    assert set(read_gradient(module, x).sentences) == rows(x)


def test_layers_that_share_an_input_are_found_in_order() -> None:
    module = network()
    weights = weights_of(module)
    sources = find_shared_inputs(token_network(module, weights), weights.keys(), VOCABULARY, LENGTH)
    assert sources[0].weights == tuple(f"blocks.0.{name}.weight" for name in ("query", "key", "value"))
    assert [each.mixes for each in sources[:3]] == [False, True, True]
    assert all(each.causal for each in sources)


def test_bad_input_is_refused_in_one_line() -> None:
    module, x = network(), sentences(1)
    seen = Round(weights_of(module), {}, gradient_of(module, x))
    for vocabulary, length in ((VOCABULARY, LENGTH + 1), (VOCABULARY + 1, LENGTH)):
        with pytest.raises(InputError) as caught:
            span_test(module, seen, Shares.GRADIENT, vocabulary=vocabulary, length=length)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError):
        span_test(network(width=32), seen, Shares.GRADIENT, vocabulary=VOCABULARY, length=LENGTH)


class NeverEmpty(nn.Module):
    """A network that refuses an empty batch, as those of `transformers` do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        assert len(x)
        output: Tensor = self.inner(x)
        return output


def test_the_search_ends_when_no_prefix_is_left() -> None:
    module, x = NeverEmpty(network()), sentences(2)
    gradient = gradient_of(module, x)
    for layer in ("out", "dense1", "dense2"):  # the spans of later layers hold no true input
        weight = gradient[f"inner.blocks.0.{layer}.weight"]
        weight.copy_(
            torch.randn(weight.shape[0], 20, dtype=weight.dtype) @ torch.randn(20, weight.shape[1], dtype=weight.dtype)
        )
    seen = Round(weights_of(module), {}, gradient)
    reading = span_test(module, seen, Shares.GRADIENT, vocabulary=VOCABULARY, length=LENGTH)
    assert reading.end is SpanEnd.TOKENS
    assert reading.proved == ()


def test_updates_of_other_weights_are_refused_in_one_line() -> None:
    module = adapt(network(), rank=4)
    before = weights_of(module)
    other = {
        name: value for name, value in weights_of(adapt(network(), rank=5)).items() if name.endswith("inner.weight")
    }
    unknown = {"nothing.weight": torch.zeros(2, 2)}
    for sent in (other, unknown, {}):
        for shares in Shares:
            with pytest.raises(InputError) as caught:
                span_test(module, Round(before, {}, sent), shares, vocabulary=VOCABULARY, length=LENGTH)
            assert "\n" not in str(caught.value)


def test_an_update_without_dense_layers_has_no_span() -> None:
    module, x = network(), sentences(1)
    gradient = gradient_of(module, x)
    seen = Round(weights_of(module), {}, {"embedding.weight": gradient["embedding.weight"]})
    assert span_test(module, seen, Shares.GRADIENT, vocabulary=VOCABULARY, length=LENGTH).end is SpanEnd.NO_LAYER


def test_sentences_are_cut_where_another_layers_span_ends() -> None:
    module, x = network(), sentences(2)
    weights, gradient = weights_of(module), gradient_of(module, x)
    network_ = token_network(module, weights)
    source = next(s for s in find_shared_inputs(network_, weights.keys(), VOCABULARY, LENGTH) if s.mixes)
    span = span_of(source, gradient, None, 0.0)
    true = [tuple(each) for each in x.tolist()]
    false = (*true[0][:3], (true[0][3] + 1) % VOCABULARY, *true[0][4:])
    assert set(cut_outside(network_, span, [*true, false])) == set(true)
    assert set(cut_outside(network_, span, [false])) == {true[0][:3]}
