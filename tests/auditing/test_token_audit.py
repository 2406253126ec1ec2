"""Audits of token models end with a grade: sentences by the span test, else the bag of words, else no good grade."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leakscope
from leakscope.attacks.exact.span_test import SpanEnd, SpanReading
from leakscope.attacks.tokens.embedded import find_lookup, over_embeddings, padding_token
from leakscope.attacks.tokens.token_attacks import lamp, tag
from leakscope.auditing import target_audit
from leakscope.auditing.audit_record import audit_record
from leakscope.auditing.audit_text import labels_words
from leakscope.auditing.limits import Budget, Pace
from leakscope.auditing.result import Audit, headline
from leakscope.auditing.static.facts import Severity, Topic
from leakscope.auditing.target import Target
from leakscope.auditing.target_file import read_request
from leakscope.auditing.tokens import search
from leakscope.auditing.tokens.audit import UNREAD, with_sentences
from leakscope.auditing.tokens.network import TokenTable, from_numbers
from leakscope.auditing.tokens.remedies import CUT, TextRemedy, try_remedies
from leakscope.auditing.tokens.search import MASKS
from leakscope.auditing.verdict import Grade
from leakscope.core.errors import InputError
from leakscope.core.progress import SILENT, ProgressEvent
from leakscope.core.types import LocalTraining
from leakscope.defences import Defence, GaussianNoise
from leakscope.models import TextTransformer, adapt, from_module, gpt
from leakscope.play.text_leak import Mark
from leakscope.report.audit_page import page_of_audit
from leakscope.report.page import render
from leakscope.report.text_tables import audit_table

torch.set_num_threads(1)
WORDS, LENGTH = 80, 5


def sample(number: int = 24) -> Tensor:
    chance = 1 / torch.arange(1, WORDS + 1).double()
    generator = torch.Generator().manual_seed(0)
    return torch.multinomial(chance, number * LENGTH, replacement=True, generator=generator).reshape(number, LENGTH)


def network(**given: object) -> TextTransformer:
    torch.manual_seed(0)
    settings: dict[str, object] = {
        "vocabulary": WORDS,
        "positions": LENGTH,
        "width": 48,
        "classes": 2,
        "depth": 2,
    } | given
    return gpt(**settings)  # type: ignore[arg-type]


def audited(
    module: nn.Module,
    client: LocalTraining | None = None,
    inputs: Tensor | None = None,
    examples: int = 2,
    words: Sequence[str] | None = None,
    defences: Sequence[Defence] = (),
    remedies: bool = False,
) -> Audit:
    x = sample() if inputs is None else inputs
    return leakscope.audit(
        module,
        "cross_entropy",
        x,
        torch.arange(len(x)) % 2,
        examples=examples,
        clients=4,
        client=client,
        words=words,
        defences=defences,
        remedies=remedies,
        progress=False,
    )


@pytest.fixture(autouse=True)
def no_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out TAG and LAMP as where no time is left, which takes a minute else."""
    monkeypatch.setattr(search, "LEAST_SECONDS", math.inf)


def test_an_update_without_anything_of_the_sentences_is_untested() -> None:
    net = network()
    for weight in net.parameters():
        nn.init.zeros_(weight)
    net.forward = lambda x: torch.zeros(len(x), 2) + sum(w.sum() for w in net.parameters()) * 0  # type: ignore[method-assign]
    made = audited(net)
    assert made.grade == "untested"
    assert made.failures({"asr": 1.0}) != []


def test_a_gpt_without_dropout_gives_all_its_sentences() -> None:
    made = audited(network())
    assert made.grade == "F"
    assert made.text is not None
    assert made.text.sentences.value == made.text.rouge2.value == 1
    assert made.text.sentences.n == 8
    assert made.text.exact_bags == 4
    assert made.text.null_rouge1 < 0.8
    assert made.failures({"asr": 0.5}) != []
    assert made.static is not None
    assert made.recovered == made.text.sentences.n
    assert made.static[Topic.TOKENS].severity is Severity.EXACT
    record = json.loads(json.dumps(audit_record(made)))["text"]
    assert record["ends"] == ["sentences"] * 4
    assert [null["name"] for null in record["nulls"]] == ["frequent_tokens", "unigram", "bigram", "nearest_public"]
    assert "shown" not in record


def test_the_table_of_a_text_audit_holds_its_scores_and_null_baselines() -> None:
    made = audited(network())
    assert made.text is not None
    table = audit_table(json.loads(json.dumps(audit_record(made))))
    columns = {column.head: column.values for column in table.columns}
    assert columns["whole sentences"][0] == made.text.sentences
    assert columns["set of tokens"][0] == made.text.bag
    assert table.baselines == len(made.text.nulls) == len(columns["attack"]) - 1
    assert [getattr(value, "value", None) for value in columns["ROUGE-L"][1:]] == [
        each.rouge_l for each in made.text.nulls
    ]


def test_labels_of_a_classifier_stand_in_the_headline() -> None:
    made = audited(network())
    assert made.labels is not None
    assert made.labels.share == made.measures.labels == 1 > made.labels.guessing
    assert labels_words(made.labels) in headline(made)


def test_the_page_shows_words_with_their_marks_and_never_as_html() -> None:
    words = [f"<b>{number}</b>" for number in range(WORDS)]
    made = audited(network(), words=words)
    assert made.text is not None
    assert {mark for each in made.text.shown for mark in each.marks} == {Mark.PLACE}
    html = render(page_of_audit(made, command="x"))
    first = made.text.shown[0].truth[0]
    assert first in words
    assert f'<span class="place" title="in its place">{escape(first)}</span>' in html
    assert first not in html


def test_words_of_another_tokeniser_are_refused() -> None:
    with pytest.raises(InputError):
        audited(network(), words=["a"] * (WORDS + 1))


def test_noise_of_known_size_leaves_no_proved_bag() -> None:
    made = audited(network(), defences=[GaussianNoise(0.1)])
    assert made.text is not None
    assert made.text.exact_bags == 0
    assert made.text.sentences.value == 0


def test_the_masks_of_dropout_are_solved_for() -> None:
    made = audited(network(dropout=0.1).train())
    assert made.grade == "F"
    assert made.text is not None
    assert set(made.text.ends) == {SpanEnd.MASKED}
    assert made.static is not None
    assert made.static[Topic.TOKENS].severity is Severity.EXACT


def test_with_much_dropout_the_bag_of_words_is_left_and_no_good_grade_is_given() -> None:
    made = audited(network(dropout=0.5).train(), examples=6)
    assert made.grade == "C"
    assert "dB" not in str(made)  # a unit of pictures
    assert made.text is not None
    assert made.text.bag is not None
    assert made.text.bag.value == 1 > made.text.null_bag
    assert {mark for each in made.text.shown for mark in each.marks} == {Mark.BAG}
    assert made.static is not None
    assert made.static[Topic.TOKENS].severity is Severity.NEUTRAL
    assert MASKS in made.unfinished


def test_tag_and_lamp_run_where_the_exact_attacks_left_the_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "ENOUGH_SHARE", 2 / 2400)
    monkeypatch.setattr(search, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(search, "fitting_iterations", lambda *_: 2)
    monkeypatch.setattr(search, "TOKEN_ATTACKS", {"tag": tag, "lamp": partial(lamp, tries=1, starts=1)})
    made = audited(frozen(), inputs=sample()[:, :3], examples=6)
    assert made.text is not None
    lines = [line for line in made.notes if "iterations" in line]
    assert [line.partition(",")[0] for line in lines] == ["tag", "lamp"]
    assert "2 of 2500 iterations" in lines[0]
    assert made.unfinished == ("tag ran 2 of 2500 iterations",)
    assert made.grade == "inconclusive"


def test_behind_a_frozen_head_the_searches_optimise_labels_and_its_name_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(search, "fitting_iterations", lambda *_: 1)
    monkeypatch.setattr(search, "TOKEN_ATTACKS", {"tag": tag})
    module = frozen()
    module.head.requires_grad_(False)
    made = audited(module, inputs=sample()[:, :3], examples=6)
    assert "tag" not in {each.what for each in made.untested}
    assert "tag ran 1 of 2500 iterations" in made.unfinished
    (why,) = [each.why for each in made.untested if each.what == "label recovery"]
    assert "head.weight" in why


def test_without_time_the_searches_are_named_as_missing() -> None:
    made = audited(frozen(), inputs=sample()[:, :3], examples=6)
    assert made.grade == "inconclusive"
    assert made.unfinished == ("tag ran 0 of 2500 iterations", "lamp ran 0 of 2000 iterations")


def test_a_reading_that_the_time_ends_counts_as_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which every look takes a second, and of which the reading has five."""
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    def budget(minutes: float) -> Budget:
        return Budget(5.0, 0.0, clock)

    monkeypatch.setattr(target_audit, "start_budget", budget)
    made = audited(network())
    assert made.grade not in ("A", "B")
    assert "0 of 4 clients were read" in made.unfinished
    assert made.failures({"asr": 1.0})
    assert made.text is not None
    assert (made.text.ends, made.text.cut) == ((SpanEnd.CUT,), 1)
    assert made.text.score_lines[0].startswith("span test: at least ")


@pytest.mark.parametrize("looks", [1, 2, 3, 4, 6, 9])
def test_wherever_the_time_ends_a_reading_the_audit_is_not_good(looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the embedding frozen nothing but the span test reads; a reading cut before its first sentence says nothing."""
    module = network()
    module.embedding.requires_grad_(False)
    left = [looks]

    def cut(self: Pace, evaluations: int) -> bool:
        left[0] -= 1
        self.ended = self.ended or left[0] <= 0
        return left[0] <= 0

    monkeypatch.setattr(Pace, "__call__", cut)
    made = audited(module)
    assert made.text is not None
    assert made.text.ends[-1] is SpanEnd.CUT
    assert made.grade in ("F", "D", "C", "inconclusive")
    assert made.text.sentences.value or made.grade == "inconclusive"
    assert any("clients were read" in each for each in made.unfinished)


def test_a_remedy_whose_reading_was_cut_is_not_shown_as_tried() -> None:
    whole = audited(network())
    assert whole.exposure is not None
    assert whole.text is not None
    target = Target(model=network(), inputs=sample(), labels=torch.arange(24) % 2)
    table = TokenTable("embedding.weight", WORDS, tied=False)
    leak = replace(whole.text, ends=(SpanEnd.CUT,))

    def tried(grade: Grade) -> TextRemedy:
        remedies = try_remedies(target, table, whole.exposure, Budget(math.inf, 0.0), SILENT, lambda _: (leak, grade))  # type: ignore[arg-type]
        return next(iter(remedies))

    assert (tried(Grade.INCONCLUSIVE).leak, tried(Grade.INCONCLUSIVE).why) == (None, CUT)
    assert tried(Grade.F).leak is leak  # what was read before the end is a leak all the same


def frozen() -> TextTransformer:
    module = network(width=16)
    module.embedding.requires_grad_(False)
    return module


def test_adapters_leak_after_several_steps_where_the_budget_holds() -> None:
    made = audited(adapt(network(depth=3), rank=6), LocalTraining(epochs=10, rate=1.0), examples=1)
    assert made.text is not None
    assert made.text.bag is None
    assert made.text.budget == 12 >= made.text.tokens
    assert made.grade == "F"


def test_tokens_in_the_span_are_a_bag_of_words_where_no_later_layer_orders_them() -> None:
    made = audited(adapt(network(depth=1), rank=6), LocalTraining(epochs=10, rate=1.0), examples=1)
    assert made.text is not None
    assert SpanEnd.TOKENS in made.text.ends
    assert SpanEnd.CLOSEST not in made.text.ends
    assert made.text.bag is not None
    assert made.text.bag.n == 4
    assert made.text.bag.value > made.text.null_bag
    assert made.grade == "C"


def test_a_network_for_one_length_is_audited_too() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def forward(self, x: Tensor) -> Tensor:
            if x.shape[1] != LENGTH:
                raise RuntimeError(f"{x.shape[1]} places")
            output: Tensor = self.network(x)
            return output

    made = audited(Fixed())
    assert made.text is not None
    assert set(made.text.ends) == {SpanEnd.CANNOT_RUN}
    assert made.text.bag is not None
    assert made.grade == "C"


def test_a_network_that_the_span_test_cannot_read_gets_no_good_grade(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leakscope.auditing.tokens.audit.search_tokens", lambda *_: search.Searched())  # all to the end
    module = Recurrent(nn.GRU)
    module.embedding.requires_grad_(False)
    made = audited(module)
    assert made.unfinished == (UNREAD,)
    assert made.grade == "inconclusive"
    assert made.failures({"asr": 1.0})


def test_fresh_adapters_hide_the_first_gradient_and_get_no_good_grade() -> None:
    made = audited(adapt(network(), rank=6))
    assert made.grade == "inconclusive"
    assert made.text is not None
    assert set(made.text.ends) == {SpanEnd.NO_UPDATE}
    assert made.failures({"asr": 0.5}) != []


def test_a_language_model_is_audited_under_its_own_loss() -> None:
    def loss(output: Tensor, tokens: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    x = sample()
    made = leakscope.audit(network(classes=None), loss, x, x, examples=2, clients=3, remedies=False, progress=False)
    assert made.grade == "F"


@pytest.mark.slow
def test_remedies_are_met_by_the_attacker_who_knows_them() -> None:
    made = audited(network(), examples=1, remedies=True)
    found = {remedy.name: remedy.leak for remedy in made.text_remedies}
    frozen, rows = found["freeze the embedding"], found["drop half of the embedding's rows"]
    both, pruned = found["freeze the embedding, dropout of 0.1"], found["prune 99 % of the update"]
    assert frozen is not None
    assert rows is not None
    assert both is not None
    assert pruned is not None
    assert made.text is not None
    assert frozen.bag is None
    assert (
        frozen.sentences.value == rows.sentences.value == made.text.sentences.value == 1
    )  # the span test is not hindered
    assert rows.bag is not None
    assert 0.2 < rows.bag.value < 0.8
    assert both.sentences.value > 0  # the masks are solved for
    assert both.bag is None
    assert pruned.sentences.value == 0
    assert [remedy.record()["name"] for remedy in made.text_remedies] == [*found]
    shares = [leak.sentences.value for leak in found.values() if leak is not None]
    assert shares == sorted(shares)
    assert len(shares) == len(found)
    assert len(audit_record(made)["text_remedies"]) == len(found)  # type: ignore[arg-type]


def test_a_remedy_without_time_is_not_shown_as_tried() -> None:
    target = Target(model=network(), inputs=sample(), labels=torch.arange(24) % 2)
    exposure = audited(network()).exposure
    assert exposure is not None
    table = TokenTable("embedding.weight", WORDS, tied=False)
    (first, *_) = try_remedies(target, table, exposure, Budget(0.0, 0.0), SILENT, lambda _: pytest.fail("was played"))
    assert (first.leak, first.grade) == (None, None)


def test_named_attacks_are_refused_and_not_ignored() -> None:
    x = sample()
    with pytest.raises(InputError):
        leakscope.audit(
            network(), "cross_entropy", x, torch.zeros(len(x), dtype=torch.int64), attacks=["cpl"], progress=False
        )


def test_tokens_outside_the_vocabulary_and_longer_than_the_positions_are_refused() -> None:
    for inputs in (sample() + WORDS, torch.cat([sample(), sample()], dim=1)):
        with pytest.raises(InputError) as caught:
            audited(network(), inputs=inputs)
        assert "\n" not in str(caught.value)


def test_padded_sentences_count_without_their_padding() -> None:
    x = 1 + sample() % (WORDS - 1)
    x[::2, 3:] = 0
    made = audited(network(padding=0), inputs=x)
    assert made.text is not None
    assert made.text.sentences.value == 1
    assert made.text.bag is not None
    assert made.text.bag.value == 1
    assert made.exposure is not None
    told, padded = search.with_places(made.exposure, 0)
    assert padded
    assert told.knowledge.real is not None
    assert torch.equal(told.knowledge.real, made.exposure.batch.inputs != 0)
    assert not search.with_places(made.exposure, None)[1]


class Encoder(nn.Module):
    """A user's encoder that names its padding by `padding_idx` alone; it masks it in attention, or reads it as a word."""

    def __init__(self, *, masks: bool = True, **settings: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.places = nn.Embedding(WORDS + 16, 48, **settings), nn.Embedding(LENGTH, 48)
        self.types = nn.Embedding(2, 48)  # never looked up
        layer = nn.TransformerEncoderLayer(48, 2, 96, dropout=0.0, batch_first=True)
        self.blocks, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(48, 2)
        self.masks = masks

    def forward(self, x: Tensor) -> Tensor:
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        shown = self.blocks(
            self.embedding(x) + self.places.weight[: x.shape[1]],
            mask=later,
            src_key_padding_mask=(x == 0) if self.masks else None,
        )
        output: Tensor = self.head(shown.mean(1))
        return output


@pytest.mark.parametrize("masks", [True, False])
def test_padding_that_only_the_embedding_names_is_no_word(masks: bool) -> None:
    x = 1 + sample() % (WORDS - 1)
    x[::2, 3:] = 0
    words = [
        "<pad>",
        *(f"w{number}" for number in range(1, WORDS)),
        *["unused"] * 16,
    ]  # no token looks the last rows up
    made = audited(Encoder(masks=masks, padding_idx=0), inputs=x, words=words)
    assert made.text is not None
    assert made.text.sentences.value == 1
    assert made.text.bag is not None
    assert made.text.bag.value == 1
    assert made.text.exact_bags == 4
    shown = {word for each in made.text.shown for word in (*each.truth, *each.guess)}
    assert "<pad>" not in shown
    assert made.text.rouge1.value == 1


def test_a_search_gives_padding_its_own_row_where_the_network_does_not_mask_it() -> None:
    module = Encoder(masks=False, padding_idx=0).double()
    with torch.no_grad():
        module.embedding.weight[0] = 1.0
    model = from_module(from_numbers(module), input_shape=(LENGTH,), example=sample()[:2].double())
    lookup = find_lookup(model)
    inner = over_embeddings(model, lookup)
    tokens = torch.tensor([[3, 4, 0, 0, 0]])
    guess = torch.cat([module.embedding(tokens).detach(), (tokens != 0)[..., None]], dim=-1)
    guess[:, 3:, :-1] = 7.0  # what stands in padded places is no unknown
    found = inner.apply(inner.parameters, inner.buffers, guess, torch.zeros((), dtype=torch.int64))[0]
    assert torch.allclose(found, module(tokens))
    assert padding_token(model) == 0


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("mode", ["mean", "sum", "max"])
def test_a_bag_of_words_model_gives_its_words_exactly_and_no_good_grade(mode: str, flat: bool) -> None:
    class Bagged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.words, self.head = nn.EmbeddingBag(WORDS, 16, mode=mode, sparse=mode != "max"), nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            given = (x.reshape(-1), torch.arange(0, x.numel(), x.shape[1])) if flat else (x,)
            output: Tensor = self.head(self.words(*given))
            return output

    module = Bagged()
    made = audited(module)
    assert made.grade == "C"
    assert made.text is not None
    assert made.text.bag is not None
    assert made.text.bag.value == (1 if mode != "max" else made.text.bag.value) > made.text.null_bag
    assert made.text.exact_bags == 4
    assert set(made.text.ends) == {SpanEnd.NO_LAYER}
    assert module.words.sparse == (mode != "max")  # the user's own network is not changed
    model = from_module(from_numbers(module), input_shape=(LENGTH,), example=sample()[:2].float())
    with pytest.raises(InputError, match="is a bag of words"):
        over_embeddings(model, find_lookup(model))


def test_sparse_gradients_give_the_same_audit_as_dense_ones() -> None:
    sparse, dense = (audited(Encoder(sparse=each)) for each in (True, False))
    assert sparse.text is not None
    assert dense.text is not None
    assert sparse.text.record() == dense.text.record()
    assert sparse.grade == "F"


def test_embeddings_that_rewrite_their_rows_are_refused_and_left_as_they_were() -> None:
    module = Encoder(max_norm=0.5)
    before = module.embedding.weight.detach().clone()
    with pytest.raises(InputError, match="max_norm, so looking a token up rewrites its row") as caught:
        audited(module)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="max_norm"):
        from_module(nn.Sequential(nn.Embedding(9, 4, max_norm=1.0), nn.Flatten(), nn.Linear(8, 2)), input_shape=(2,))
    assert torch.equal(module.embedding.weight, before)


def test_padding_of_a_search_is_no_part_of_its_sentences() -> None:
    tokens = torch.tensor([[[3, 4, 0], [5, 0, 0]]])
    ((reading, _),) = with_sentences([(SpanReading(SpanEnd.NOTHING, proved=((1,),)), None)], tokens, padding=0)
    assert (reading.sentences, reading.proved) == (((3, 4), (5,)), ())


class Recurrent(nn.Module):
    """A classifier of the last state."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.embedding, self.layers, self.head = (
            nn.Embedding(WORDS, 16),
            kind(16, 12, batch_first=True),
            nn.Linear(12, 2),
        )  # type: ignore[call-arg]

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.layers(self.embedding(x))[0]
        output: Tensor = self.head(states[:, -1])
        return output


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_recurrent_classifier_gives_its_bag_of_words_and_its_order_is_untested(kind: type[nn.RNNBase]) -> None:
    made = audited(Recurrent(kind))
    assert made.grade == "C"
    assert made.text is not None
    assert made.text.exact_bags == len(made.text.ends) == 4
    assert made.text.bag is not None
    assert made.text.bag.value == 1
    assert set(made.text.ends) == {SpanEnd.NO_LAYER}
    assert "order of the tokens" in {each.what for each in made.untested}


def stop_at(message: str) -> Callable[[ProgressEvent], None]:
    """Return a listener that interrupts when a message with this text is reported."""

    def listen(event: ProgressEvent) -> None:
        if event.message is not None and message in event.message:
            raise KeyboardInterrupt

    return listen


@pytest.mark.parametrize(
    ("message", "grade", "read", "tried"),
    [
        ("client 1 of 4", "inconclusive", 0, 0),
        ("client 3 of 4", "F", 2, 0),
        ("freeze the embedding, dropout", "F", 4, 1),
    ],
)
def test_an_interrupted_audit_keeps_what_was_read_and_passes_no_gate(
    message: str, grade: str, read: int, tried: int
) -> None:
    made = leakscope.audit(
        network(), "cross_entropy", sample(), torch.arange(24) % 2, clients=4, progress=stop_at(message)
    )
    assert made.interrupted
    assert made.grade == grade
    assert (0 if made.text is None else made.text.sentences.n) == read
    assert len(made.text_remedies) == tried
    assert made.failures({"asr": 1.0})
    assert "interrupted" in str(made)
    assert render(page_of_audit(made, command="x"))


def test_an_audit_file_names_sentences(tmp_path: Path) -> None:
    file = tmp_path / "audit.yaml"
    file.write_text("model: {name: gpt, width: 16, heads: 2}\ndata: grammar\n")
    target = read_request(file).target
    assert target.inputs is not None
    assert target.words is not None
    assert target.inputs.dtype == torch.int64
    assert int(target.inputs.max()) < len(target.words) == target.model.network.embedding.num_embeddings  # type: ignore[union-attr]
    assert 0.01 < float(target.model.network.embedding.weight.detach().std()) < 0.03  # type: ignore[union-attr]
    file.write_text("model: mlp\ndata: grammar\n")
    with pytest.raises(InputError, match="mlp is for pictures and tables"):
        read_request(file)
