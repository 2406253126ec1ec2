"""Sentences in scenario files: they are attacked, scored, stored and shown, and what does not suit them is refused in one line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import leakscope
from leakscope.cli import app
from leakscope.core.errors import InputError
from leakscope.data import SOURCES
from leakscope.models import adapt, build, gpt
from leakscope.play.text_leak import Mark, ShownSentence
from leakscope.report.cells import TEXT_DATA
from leakscope.report.page import render
from leakscope.report.sentences import SentenceTable, sentence_tables
from leakscope.report.serving import page_of_directory
from leakscope.scenario import ScenarioError, scenario_of
from leakscope.store import Run
from leakscope.sweep import run_scenario
from leakscope.sweep.chunk import joined
from leakscope.sweep.engines import serial
from leakscope.training import run_training, training_of
from leakscope.training.objects import make_objects
from own_pieces import no_plugins

TAG = {"name": "tag", "iterations": 3}
SCENARIO: dict[str, Any] = {
    "name": "sentences",
    "data": {"name": "alice_sonnets", "length": 5, "samples": 2},
    "model": {"name": "gpt", "width": 32, "heads": 2},
    "attacks": ["bag_of_words", "span_test", TAG],
    "trials": 2,
    "precision": {"form": "native"},
}

TRAINING: dict[str, Any] = {
    "data": "grammar", "model": {"name": "gpt", "width": 16, "heads": 2}, "weights": "transformer", "rounds": 1,
    "partition": {"name": "iid", "clients": 4}, "client": {"local": {"epochs": 1}},
}  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("text") / "run"
    run_scenario(scenario_of(SCENARIO), made, engine=serial, measure=False)
    return made


def scores(run: Run, name: str) -> dict[str, float]:
    """Return the mean over trials of what a cell stores for each."""
    cell = next(cell for cell in run.cells() if cell.settings["attack"]["name"] == name)  # type: ignore[index, call-overload]
    records = list(run.records(cell=cell.id))
    means = {key: sum(record.learned[key] for record in records) / len(records) for key in records[0].learned}
    return means | {"whole": sum(each.recovered for record in records for each in record.samples) / 4}


def test_the_span_test_is_exact_the_bag_complete_and_the_baselines_are_neither(directory: Path) -> None:
    run = Run.open(directory)
    assert scores(run, "span_test") == {
        "rouge1": 1, "rouge2": 1, "rouge_l": 1, "token_recall": 1, "proved_share": 1, "sentences": 2, "whole": 1,
    }  # fmt: skip
    bag = scores(run, "bag_of_words")
    assert (bag["token_recall"], bag["whole"]) == (1, 0)
    for name in ("frequent_tokens", "unigram", "bigram", "nearest_public"):
        assert scores(run, name)["token_recall"] < 0.8
        assert scores(run, name)["whole"] == 0


def test_short_sentences_are_padded_masked_and_recovered_without_their_padding(tmp_path: Path) -> None:
    data = {"name": "alice_sonnets", "length": 9, "shortest": 3, "samples": 2, "first": 20}
    model = {"name": "bert", "width": 64, "heads": 2}
    scenario = scenario_of(SCENARIO | {"data": data, "model": model, "attacks": ["span_test", TAG]})
    run_scenario(scenario, tmp_path / "run", engine=serial, measure=False)
    run = Run.open(tmp_path / "run")
    span, tag = (next(c for c in run.cells() if c.axes.get("attack") == name) for name in ("span_test", "tag"))
    assert scores(run, "span_test")["whole"] == scores(run, "span_test")["proved_share"] == 1
    truths = torch.cat([run.tensors(record.trial)["truth"] for record in run.records(cell=span.id)])
    assert bool((truths == 0).any())
    for record in run.records(cell=tag.id):  # the attacker knows which places hold padding
        tensors = run.tensors(record.trial)
        assert torch.equal((tensors["inputs"] == 0).sum(1).sort().values, (tensors["truth"] == 0).sum(1).sort().values)
    table = sentence_tables(run)[0]
    assert "<pad>" not in {word for each in table.shown for word in (*each.truth, *each.guess)}


def test_stored_sentences_are_token_numbers_beside_their_truth(directory: Path) -> None:
    run = Run.open(directory)
    cell = next(cell for cell in run.cells() if cell.axes.get("attack") == "span_test")
    tensors = run.tensors(next(iter(run.records(cell=cell.id))).trial)
    assert tensors["truth"].dtype == tensors["inputs"].dtype == torch.int32
    assert torch.equal(tensors["inputs"][tensors["pairing"]], tensors["truth"])
    assert tensors["proved"].tolist() == [1, 1]


def test_a_page_and_show_put_recovered_sentences_beside_the_true_ones(directory: Path) -> None:
    exact, tag = (table for table in sentence_tables(Run.open(directory)) if table.name != "bag_of_words")
    assert (exact.name, exact.total, len(exact.shown)) == ("span_test", 4, 4)
    assert all(each.truth == each.guess and each.proved for each in exact.shown)
    assert all(mark is Mark.PLACE for each in exact.shown for mark in each.marks)
    assert {each.certainty for each in tag.shown} == {"not proved"}
    page = render(page_of_directory(directory, command="test"))
    assert "The sentences" in page
    assert not re.search(r">(MSE|PSNR, dB|SSIM)<", page)
    said = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(app, ["show", str(directory)])
    assert said.exit_code == 0, said.output
    assert " ".join(exact.shown[0].truth) in said.output
    assert "not proved" in said.output
    assert "MSE" not in said.output


def test_words_of_a_page_are_never_html(directory: Path) -> None:
    bad = "<script>alert(1)</script>"
    shown = ShownSentence(0, (bad,), (Mark.MISSED,), (bad,))
    page = replace(
        page_of_directory(directory, command="test"), sentences=(SentenceTable(name=bad, shown=(shown,), total=1),)
    )
    assert bad not in render(page)


def test_a_resumed_run_has_nothing_left_and_equal_cells_differ_by_length(directory: Path) -> None:
    again = run_scenario(scenario_of(SCENARIO), directory, engine=serial, measure=False)
    assert again.landed == 0
    longer = {**SCENARIO, "data": {**SCENARIO["data"], "length": 6}}
    assert {cell.id for cell in scenario_of(longer).cells()}.isdisjoint(
        cell.id for cell in scenario_of(SCENARIO).cells()
    )


def test_generated_sentences_noise_and_dropout_are_played(tmp_path: Path) -> None:
    """Masks of dropout are solved for, so that a scenario reports no less than an audit; the informed attacker knows the noise."""
    told = {
        **SCENARIO,
        "data": {"name": "grammar", "length": 5, "words": 60},
        "model": {"name": "gpt", "width": 32, "heads": 2, "dropout": 0.1},
        "attacks": ["span_test"],
        "trials": 1,
        "baselines": [],
    }
    run_scenario(scenario_of(told), tmp_path / "dropout", engine=serial, measure=False)
    assert scores(Run.open(tmp_path / "dropout"), "span_test")["rouge1"] == 1
    noisy = {**told, "model": SCENARIO["model"], "defences": [{"name": "gaussian_noise", "sigma": 1e-9}]}
    assert [cell.axes["knowledge.defence"] for cell in scenario_of(noisy).cells()] == [False, True]
    assert len(list(scenario_of({**noisy, "attacks": [TAG]}).cells())) == 1  # TAG has no use for the size of noise


@pytest.mark.slow
def test_a_dishonest_server_reads_more_tokens_of_a_transformer_than_public_sentences_hold(tmp_path: Path) -> None:
    trap = {
        **SCENARIO,
        "data": {"name": "grammar", "length": 5, "words": 60, "samples": 2},
        "model": {"name": "gpt", "width": 64, "depth": 2},
        "attacks": ["decepticons"],
        "trials": 1,
        "baselines": ["nearest_public"],
    }
    run_scenario(scenario_of(trap), tmp_path / "run", engine=serial, measure=False)
    run = Run.open(tmp_path / "run")
    assert scores(run, "decepticons")["token_recall"] > 0.8 > scores(run, "nearest_public")["token_recall"]
    with no_plugins():
        leakscope.register_model("adapted", adapted)
        own = {**trap, "model": {"name": "adapted"}, "attacks": ["adapter_imprint"], "baselines": []}
        run_scenario(scenario_of(own), tmp_path / "adapted", engine=serial, measure=False)
        assert scores(Run.open(tmp_path / "adapted"), "adapter_imprint")["token_recall"] > 0.8


def adapted(*, input_shape: Sequence[int], classes: int, vocabulary: int) -> nn.Module:
    network = gpt(vocabulary=vocabulary, positions=input_shape[0], width=64, classes=classes)
    return adapt(network, layers=["value"])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"attacks": ["imprint"]}, "imprint is for pictures and tables: .*, decepticons"),
        ({"attacks": ["decepticons"], "model": {"name": "gpt", "width": 32, "depth": 1}}, "needs at least two blocks"),
        ({"data": "digits", "model": "mlp", "attacks": ["decepticons"]}, "decepticons is for sentences"),
        ({"attacks": ["adapter_imprint"]}, "needs low-rank adapters on dense1 or value"),
        ({"model": "mlp"}, "mlp is for pictures and tables"),
        ({"attacks": ["ig"]}, "ig is for pictures and tables: alice_sonnets needs one of bag_of_words, span_test"),
        ({"data": "digits", "model": "mlp", "attacks": ["tag"]}, "tag is for sentences, digits holds none"),
        ({"data": "digits", "attacks": ["cpl"]}, "gpt is for sentences, digits holds none"),
        ({"baselines": ["class_mean"]}, "class_mean does not suit alice_sonnets"),
        ({"metrics": ["ssim"]}, "sentences always have ROUGE-1"),
        ({"client": {"on_data": {"policy": "3-1-7"}}}, "on_data is for pictures"),
        ({"attacks": ["tag"], "knowledge": {"defence": True}}, "tag uses no fact about a defence"),
        ({"data": {"name": "alice_sonnets", "length": 60}}, "no sentence of 60 words"),
        ({"data": {"name": "alice_sonnets", "words": 50}}, "DataChoice.words is for grammar"),
        ({"data": {"name": "digits", "length": 5}}, "DataChoice.length is for sentences"),
        ({"trials": 900}, "at most"),
    ],
)
def test_what_does_not_suit_sentences_is_refused_in_one_line(change: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=why):
        run_scenario(scenario_of({**SCENARIO, **change}), tmp_path / "run", engine=serial, measure=False)
    assert not (tmp_path / "run").exists()


def test_halves_that_found_different_numbers_of_sentences_are_joined() -> None:
    whole = joined(torch.ones(1, 2, 3), torch.ones(2, 4, 3))
    assert whole.shape == (3, 4, 3)
    assert whole[0, 2:].eq(-1).all()


def test_the_page_knows_every_set_of_sentences() -> None:
    assert set(TEXT_DATA) == {name for name, source in SOURCES.items() if source.kind == "text"}


class TwoLayers(nn.Module):
    """A user's network over token numbers, causal, with frozen random features that no scheme of first weights draws."""

    def __init__(self, tokens: int, classes: int, vocabulary: int, width: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)
        self.register_buffer("features", torch.rand(width))
        self.features: Tensor

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        later = torch.full((len(places), len(places)), -torch.inf, device=tokens.device).triu(1)
        x = self.blocks(self.words(tokens) + self.places(places), mask=later)
        output: Tensor = self.head(x[:, -1] * self.features)
        return output


def two_layers(*, input_shape: Sequence[int], classes: int, vocabulary: int, width: int = 32) -> nn.Module:
    return TwoLayers(input_shape[0], classes, vocabulary, width)


def test_an_own_network_over_tokens_is_named_in_scenarios_and_trainings(tmp_path: Path) -> None:
    own = {**SCENARIO, "model": {"name": "two_layers", "width": 48}, "attacks": ["bag_of_words", "span_test", TAG]}
    padded = {**own, "data": {**SCENARIO["data"], "length": 6, "shortest": 3}}
    with no_plugins():
        leakscope.register_model("two_layers", two_layers)
        run_scenario(scenario_of(own), tmp_path / "run", engine=serial, measure=False)
        run = Run.open(tmp_path / "run")
        assert scores(run, "span_test")["whole"] == 1
        assert scores(run, "bag_of_words")["token_recall"] == 1
        with pytest.raises(ScenarioError, match="two_layers takes no padding"):
            run_scenario(scenario_of(padded), tmp_path / "padded", engine=serial, measure=False)
        with pytest.raises(ScenarioError, match="two_layers is for sentences, digits holds none"):
            run_scenario(scenario_of({**own, "data": "digits"}), tmp_path / "digits", engine=serial, measure=False)
        with pytest.raises(InputError, match="has the name of a built-in model"):
            leakscope.register_model("mlp", two_layers)
        result = run_training(training_of({**TRAINING, "model": "two_layers"}), tmp_path / "training")
        assert max(result.checkpoints) == 1


def six_positions(*, input_shape: Sequence[int], classes: int, vocabulary: int, rows: int = 0) -> nn.Module:
    return TwoLayers(6, classes, rows or vocabulary, 32)


@pytest.mark.parametrize(
    ("length", "rows", "why"), [(7, 0, r"cannot run .* sentences of 7"), (6, 50, r"cannot run .*[0-9]+ words")]
)
def test_sentences_or_words_of_another_network_are_refused_in_one_line(
    length: int, rows: int, why: str, tmp_path: Path
) -> None:
    own = {"data": {"name": "alice_sonnets", "length": length}, "model": {"name": "six_positions", "rows": rows}}
    with no_plugins():
        leakscope.register_model("six_positions", six_positions)
        for refused in (
            lambda: run_scenario(scenario_of({**SCENARIO, **own}), tmp_path / "run", engine=serial, measure=False),
            lambda: make_objects(training_of({**TRAINING, **own})),
        ):
            with pytest.raises(ScenarioError, match=r"model: .*cannot run") as caught:
                refused()
            assert len(caught.value.problems) == 1
        with pytest.raises(ScenarioError, match=why):
            run_scenario(scenario_of({**SCENARIO, **own}), tmp_path / "run", engine=serial, measure=False)


def test_what_a_network_draws_comes_from_its_seed_and_no_global_generator_moves() -> None:
    with no_plugins():
        leakscope.register_model("two_layers", two_layers)
        before = torch.get_rng_state()

        def features(seed: int) -> Tensor:
            torch.rand(1)
            return build("two_layers", (4,), 2, {"vocabulary": 9}, seed=seed).buffers["network.features"]

        first, again, other = features(0), features(0), features(1)
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        torch.set_rng_state(before)
        moved = torch.rand(4)
        torch.set_rng_state(before)
        features(3)
        torch.set_rng_state(before)
        with mock.patch("torch.cuda.manual_seed_all") as cuda:
            build("two_layers", (4,), 2, {"vocabulary": 9})
        cuda.assert_not_called()
        assert torch.equal(torch.rand(4), moved)


def test_a_training_cuts_pads_and_generates_its_sentences_as_told(tmp_path: Path) -> None:
    data = {"name": "grammar", "length": 9, "shortest": 4, "words": 60, "examples": 40}
    made = make_objects(training_of({**TRAINING, "data": data}))
    assert made.data.input_shape == (9,)
    assert len(made.trained.parameters["network.embedding.weight"]) == len(made.data.words) < 100
    assert bool((made.data.x_train == 0).any())
    result = run_training(training_of({**TRAINING, "data": data}), tmp_path / "run")
    assert max(result.checkpoints) == 1
    with pytest.raises(InputError, match="another training"):
        run_training(training_of({**TRAINING, "data": {**data, "length": 8}}), tmp_path / "run")
    stamped = training_of({**TRAINING, "data": "grammar"}).decisive["data"]
    assert not {"length", "words", "shortest"} & set(stamped)  # type: ignore[call-overload]
    for wrong, why in (
        ({"length": 0}, "in 1 .. 512"),
        ({"shortest": 9}, "in 1 .. 8"),
        ({"words": 3}, "in 10 .. 50000"),
    ):
        with pytest.raises(ScenarioError, match=f"TrainingData.*{why}"):
            training_of({**TRAINING, "data": {"name": "grammar", **wrong}})


def test_a_training_has_the_vocabulary_of_its_sentences_and_refuses_networks_of_pictures() -> None:
    made = make_objects(training_of(TRAINING))
    assert made.trained.parameters["network.embedding.weight"].shape == (len(made.data.words), 16)
    with pytest.raises(ScenarioError, match="mlp is for pictures and tables"):
        make_objects(training_of({**TRAINING, "model": "mlp"}))
