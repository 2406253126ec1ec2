"""An audit grades what its attacks did, says what it could not try, and takes what users bring or says what to do."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leakscope
from leakscope.attacks.null import guessed
from leakscope.attacks.recipes import prior_only
from leakscope.auditing import (
    Target,
    UntestedError,
    advice,
    attack_runs,
    audit_captures,
    audit_target,
    parse_gate,
    suite,
)
from leakscope.auditing.advice import Advice, _judge, advise
from leakscope.auditing.attack_runs import LabelReading, expose_clients, plan_exposure
from leakscope.auditing.attempts import Attempt
from leakscope.auditing.audit_record import audit_record
from leakscope.auditing.capture_audit import structure
from leakscope.auditing.changes import CHANGES
from leakscope.auditing.descriptions import NOTHING
from leakscope.auditing.limits import Budget, Pace, start_budget
from leakscope.auditing.remedies import (
    ELSEWHERE,
    Course,
    Finding,
    Remedy,
    accuracy_with,
    by_cost,
    by_leakage,
    cut_off,
    find,
    find_course,
    remedies_for,
    stacked,
)
from leakscope.auditing.suite import INFORMED, plan_suite
from leakscope.auditing.target import find_scaling, make_subject
from leakscope.auditing.target_file import load_build, read_request
from leakscope.auditing.verdict import Measures, failures, grade, measure
from leakscope.clients import Client
from leakscope.core.errors import InputError
from leakscope.core.progress import SILENT
from leakscope.core.tree import Tree
from leakscope.core.types import Batch, LocalTraining, Outcome, make_batch
from leakscope.defences import DEFENCES, Clip, GaussianNoise, RandomMask, Sign, Sparsify
from leakscope.defences.on_data import Transform
from leakscope.defences.on_model import Polarisation
from leakscope.defences.strengths import tried
from leakscope.play import Exposure, judge
from leakscope.report.audit_page import _algebra, page_of_audit
from leakscope.report.page import render
from leakscope.scenario import ScenarioError
from leakscope.store.captures import Capture, write_capture

BRIEF = 0.5  # minutes: more than a few iterations take, so that an audit ends by itself


@pytest.fixture(autouse=True)
def few_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every attack end after a few iterations: enough for the dense network, and no time is spent on probing."""
    monkeypatch.setattr(suite, "PUBLISHED", dict.fromkeys(suite.PUBLISHED, 1) | {"cpl": 1, "ig": 4, "sme": 4})
    monkeypatch.setattr(attack_runs, "prior_only", partial(prior_only, iterations=4))


def dense() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Sigmoid(), nn.Linear(8, 3))


def conv() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3))


def sample(number: int = 24) -> tuple[Tensor, Tensor]:
    """Return 4 x 4 pictures of three classes that differ by where they are bright."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(number) % 3
    pictures = 0.6 * torch.rand(number, 1, 4, 4, generator=generator)
    for place, label in enumerate(labels):
        pictures[place, 0, int(label)] += 0.4
    return pictures, labels


def target(**changed: Any) -> Target:
    inputs, labels = sample()
    return Target(**({"model": dense(), "inputs": inputs, "labels": labels} | changed))


# -- the whole


def test_a_dense_first_layer_is_graded_f_by_algebra() -> None:
    inputs, labels = sample()
    made = leakscope.audit(dense(), "cross_entropy", inputs, labels, minutes=BRIEF, clients=4, remedies=False)
    assert made.grade == "F"
    assert made.worst is not None
    assert made.worst.name in ("analytic", "cpl")
    assert made.recovered == 4
    assert made.labels is not None
    assert made.labels.share == 1.0
    assert {run.name for run in made.nulls} == {"class_mean", "prior_only", "nearest_public"}
    assert made.failures({"asr": 0.05}) == ["asr is 1, above 0.05"]
    assert made.failures({"asr": 1.0}) == []
    text = str(made)
    for said in ("grade F", "95 % interval", "without the update", "worst: client"):
        assert said in text
    assert json.loads(json.dumps(audit_record(made)))["grade"] == "F"
    page = render(page_of_audit(made, command="leakscope audit x:y"))
    assert "Grade F" in page
    assert "nearest_public" in page or "nearest public" in page


def test_the_attacker_who_knows_the_defence_is_always_there() -> None:
    made = audit_target(target(model=conv(), defences=(GaussianNoise(1e-6),)), minutes=BRIEF, clients=2, remedies=False)
    names = {run.name for run in made.runs}
    assert {"cpl", "ig", f"cpl, {INFORMED}", f"ig, {INFORMED}"} <= names
    assert [item.what for item in made.untested] == ["analytic"]


@pytest.mark.slow
def test_local_steps_bring_sme() -> None:
    local = LocalTraining(epochs=2, batch_size=2, rate=0.05)
    made = audit_target(target(model=conv(), client=local, examples=4), minutes=BRIEF, clients=2, remedies=False)
    assert {run.name for run in made.runs} == {"feature_inversion", "cpl", "ig", "sme"}
    one = audit_target(target(model=conv(), client=LocalTraining()), minutes=BRIEF, clients=2, remedies=False)
    assert "sme" not in {run.name for run in one.runs}


@pytest.mark.slow
def test_remedies_are_tried_and_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "find_course", partial(find_course, rounds=20))
    some = {"gaussian_noise", "clip", "sparsify", "quantise"}
    weaker = len(DEFENCES)
    monkeypatch.setattr(
        advice, "remedies_for", lambda world: [each for each in remedies_for(world)[:weaker] if each[0] in some]
    )
    made = audit_target(target(inputs=sample(60)[0], labels=sample(60)[1]), minutes=10, clients=4)
    assert made.advice is not None
    tried = {r.name: r for r in (*made.advice.remedies, *made.advice.useless, *made.advice.unproven)}
    assert set(tried) == some
    assert made.advice.skipped == ELSEWHERE
    assert tried["clip"].finding is Finding.USELESS  # a division does not see a clip
    assert all(remedy.finding is Finding.HELPS and remedy.lost is not None for remedy in made.advice.remedies)
    assert "what would help" in str(made)
    assert "does not help (" in str(made)
    record = json.loads(json.dumps(audit_record(made)))
    assert "clip" in [item["name"] for item in record["not_shown_to_help"]]
    assert made.advice.remedies
    page = page_of_audit(made, command="x")
    assert made.advice.remedies[0].words in page.explanation
    helps = page.findings[-1]
    assert helps.title == "What would help"
    assert helps.lines[0].startswith(made.advice.remedies[0].words)
    unhelpful = next(line for line in helps.lines if line.startswith(f"does not help ({len(made.advice.useless)}): "))
    assert tried["clip"].words in unhelpful
    shown = render(page)
    for remedy in (*made.advice.useless, *made.advice.unproven):
        assert f"{remedy.name}, {remedy.strength}" in shown
        assert remedy.finding.value in shown


def test_a_strong_defence_gets_a_better_grade() -> None:
    made = audit_target(target(defences=(GaussianNoise(10.0),)), minutes=BRIEF, clients=4)
    assert made.grade in ("A", "B")
    assert made.advice is None


def test_the_same_seed_plays_the_same_clients() -> None:
    subject = make_subject(target())
    one, two, other = (expose_clients(subject, 4, seed) for seed in (3, 3, 4))
    assert torch.equal(one.batch.inputs, two.batch.inputs)
    assert not torch.equal(one.batch.inputs, other.batch.inputs)
    flat = one.batch.inputs.flatten(0, 1)
    assert len({tuple(x.flatten().tolist()) for x in flat}) == len(flat)


# -- models that no attack can handle


class OneHot(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(nn.functional.one_hot(x, 10).float().mean(1))


class Decides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1)) if float(x.mean()) < 9 else self.head(-x.flatten(1))


def test_what_no_attack_can_handle_is_untested_and_never_safe() -> None:
    made = audit_target(target(model=OneHot(), inputs=torch.randint(10, (24, 5))), minutes=BRIEF)
    assert made.grade == "untested"
    assert any("token numbers" in item.why for item in made.untested)
    assert made.failures({"asr": 0.5, "psnr": 99}) != []
    assert "untested" in render(page_of_audit(made, command="x"))


def test_a_dense_layer_is_divided_where_vmap_cannot_run_the_model() -> None:
    made = audit_target(target(model=Decides()), minutes=BRIEF, remedies=False)
    assert made.grade == "F"
    assert {item.what for item in made.untested} >= {"cpl", "ig"}


class NoSecond(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


def test_matching_attacks_are_untested_by_name_where_they_cannot_run() -> None:
    subject = make_subject(target())
    world = expose_clients(subject, 2, 0)
    entries, untested = plan_suite(
        subject.model, world.knowledge, None, steps=1, shares=world.observation.shares, unmatched="no second derivative"
    )
    assert [entry.name for entry in entries] == ["analytic"]
    assert [item.what for item in untested] == ["cpl", "ig"]


def analytic_of(client: Client, examples: int = 1) -> tuple[Exposure, list[suite.Entry]]:
    world = expose_clients(make_subject(target(client=client, examples=examples)), 2, 0)
    return world, [entry for entry in plan_exposure(world)[0] if entry.name.startswith("analytic")]


def test_the_analytic_attack_is_told_which_coordinates_were_sent() -> None:
    world, entries = analytic_of(Client(defences=(RandomMask(0.8),)))
    unaware, told = attack_runs.run_entries(
        world, [Attempt(each, world.trials) for each in entries], start_budget(BRIEF), SILENT
    ).runs
    assert (unaware.name, told.name) == ("analytic", f"analytic, {INFORMED}")
    assert float(told.scores.mse.mean()) < 0.1 * float(unaware.scores.mse.mean())
    shown = _algebra(SimpleNamespace(runs=(unaware, told)), world)
    assert shown is not None
    assert [pair.mse for pair in shown.pairs] == sorted(told.scores.mse.flatten().tolist())


@pytest.mark.parametrize(("defences", "examples"), [((), 1), ((Clip(1.0),), 1), ((RandomMask(0.5),), 2)])
def test_the_analytic_attack_runs_once_where_telling_it_changes_nothing(
    defences: tuple[Any, ...], examples: int
) -> None:
    _, entries = analytic_of(Client(defences=defences), examples)
    assert [entry.name for entry in entries] == ["analytic"]


# -- what users bring


def played(**changed: Any) -> Any:
    return audit_target(target(**changed), minutes=BRIEF, clients=2, remedies=False)


def test_batch_norm_in_train_mode_works() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3))
    made = played(model=model.train(), examples=2)
    assert made.grade != "untested"
    assert any("batch norm" in note for note in made.notes)
    assert isinstance(model[1], nn.BatchNorm2d)
    assert int(model[1].num_batches_tracked) == 0  # the user's model was not touched


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_work_and_are_noted(dtype: torch.dtype) -> None:
    inputs, labels = sample()
    made = played(model=dense().to(dtype), inputs=inputs.to(dtype), labels=labels)
    assert made.grade == "F"
    assert any("converted" in note for note in made.notes)


def test_one_hot_labels_work() -> None:
    _, labels = sample()
    made = played(labels=torch.nn.functional.one_hot(labels, 3).float())
    assert made.grade == "F"
    assert any("one-hot" in note for note in made.notes)


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (nn.CrossEntropyLoss(), "cross_entropy"),
        (nn.CrossEntropyLoss(reduction="none"), "cross_entropy"),
        (lambda o, y: nn.functional.nll_loss(o.log_softmax(1), y), "cross_entropy"),
        (nn.MSELoss(), "mse"),
        ("mse", "mse"),
    ],
)
def test_a_loss_is_known_by_its_values(loss: Any, name: str) -> None:
    subject = make_subject(target(loss=loss))
    assert subject.client.loss == name
    vector = getattr(loss, "reduction", "") == "none"
    assert any("each example" in note for note in subject.notes) == vector


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"loss": lambda o, y: None}, "returns no tensor"),
        ({"loss": "hinge"}, "loss must be"),
        ({"loss": 3}, "loss .*a function"),
        ({"model": nn.Sequential(nn.Flatten(), nn.Linear(16, 1))}, "BCEWithLogitsLoss"),
        ({"labels": torch.arange(24)}, "labels .*0..2"),
        ({"labels": torch.rand(24)}, "fractions"),
        ({"labels": torch.zeros(7, dtype=torch.int64)}, "labels must be 24"),
        ({"inputs": sample()[0].to("meta")}, "meta device"),
        ({"inputs": torch.full((24, 1, 4, 4), float("nan"))}, "NaN"),
        ({"inputs": torch.zeros(24, 1, 4, 4, dtype=torch.uint8)}, "bytes"),
        ({"inputs": torch.rand(24, 1, 5, 5)}, "on inputs"),
        ({"inputs": None}, "your own data"),
        ({"model": "resnet"}, "nn.Module"),
        ({"model": dense().to("meta")}, "meta device"),
        ({"examples": 25}, "examples .*1..24"),
        ({"client": "fedavg"}, "LocalTraining"),
        ({"mean": (0.5,)}, "belong together"),
        ({"mean": (0.5,), "std": (9.0,)}, "mean and std"),
        ({"defences": (Clip(1.0), Sign())}, "one of them"),
        ({"client": Client(defences=(Clip(1.0),)), "defences": (Clip(1.0),)}, "twice"),
    ],
)
def test_bad_input_is_one_clear_line(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        make_subject(target(**changed))
    assert len(str(refused.value).splitlines()) == 1
    assert not isinstance(refused.value, UntestedError)


@pytest.mark.parametrize("settings", [{"minutes": 0}, {"minutes": float("nan")}, {"clients": 0}, {"seed": -1}])
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        audit_target(target(), **settings)


def test_the_range_of_a_normalised_sample_becomes_the_box() -> None:
    inputs = 5 * sample()[0] - 2
    notes: list[str] = []
    scaling, pictures = find_scaling(inputs, None, None, notes)
    torch.testing.assert_close(scaling.scale(pictures, 3), inputs, rtol=0, atol=1e-5)
    assert float(pictures.min()) == 0
    assert float(pictures.max()) == pytest.approx(1)
    assert "range" in notes[0]


# -- the verdict


def run_of(truth: Batch, hits: int, name: str = "x") -> Any:
    """Return a run that recovered the first `hits` pictures exactly and made the others black."""
    guess = truth.inputs * 0
    guess[:hits] = truth.inputs[:hits]
    return judge(truth, guessed(guess, truth.labels), name=name)


@pytest.fixture
def truth() -> Batch:
    inputs = torch.rand(40, 1, 1, 12, 12, generator=torch.Generator().manual_seed(0)) * 0.5 + 0.5
    return make_batch(inputs, torch.zeros(40, 1, dtype=torch.int64), classes=3)


@pytest.mark.parametrize(("hits", "wanted"), [(40, "F"), (20, "F"), (19, "D"), (2, "D"), (1, "C"), (0, "A")])
def test_the_grade_follows_its_rule(truth: Batch, hits: int, wanted: str) -> None:
    assert grade([run_of(truth, 0), run_of(truth, hits)], [run_of(truth, 0)], None) == wanted


def test_what_needs_no_update_does_not_count(truth: Batch) -> None:
    assert grade([run_of(truth, 30)], [run_of(truth, 30)], None) == "A"
    assert grade([run_of(truth, 31)], [run_of(truth, 30)], None) == "C"
    measures = measure([run_of(truth, 31)], [run_of(truth, 30)], None)
    assert measures.asr is not None
    assert measures.asr.value == pytest.approx(1 / 40)
    assert measures.asr.n == 40


def test_labels_alone_are_a_b_and_nothing_run_is_untested(truth: Batch) -> None:
    read, blind = LabelReading("cpl", 0.9, 0.3, 40), LabelReading("cpl", 0.35, 0.3, 40)
    assert grade([run_of(truth, 0)], [run_of(truth, 0)], read) == "B"
    assert grade([run_of(truth, 0)], [run_of(truth, 0)], blind) == "A"
    assert grade([], [run_of(truth, 0)], read) == "untested"


def test_a_gate_fails_above_its_limits_and_on_what_was_not_measured() -> None:
    measures = Measures(psnr=18.5, labels=0.2)
    assert failures(measures, {"psnr": 18}) == ["psnr is 18.5, above 18"]
    assert failures(measures, {"psnr": 18.5, "labels": 0.2}) == []
    assert "not measured" in failures(measures, {"asr": 0.05})[0]
    assert failures(measures, {}) == []


@pytest.mark.parametrize("text", ["asr", "asr=", "asr=x", "mse=1", "asr=nan", "", "asr=0.1,,"])
def test_a_gate_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--fail-above"):
        parse_gate(text)


# -- the budget


def test_the_pace_is_that_of_warm_evaluations() -> None:
    times = iter([0.0, 30.0, 30.5, 31.0, 31.5])
    pace = Pace(lambda: next(times))
    assert pace.seconds is None
    assert [pace(number) for number in range(5)] == [False] * 5
    assert pace.seconds == pytest.approx(0.5)


def test_a_run_ends_before_the_evaluation_that_would_pass_its_end() -> None:
    times = iter([0.0, 4.0, 8.0])
    pace = Pace(lambda: next(times), until=10.0)
    assert [pace(0), pace(1), pace(2)] == [False, False, True]
    assert pace.ended
    assert Pace(lambda: 5.0, until=4.0)(0)
    assert [Pace(lambda: 0.0, most=1)(number) for number in (0, 1)] == [False, True]
    assert [Pace(lambda: 5.0, until=4.0, least=1)(number) for number in (0, 1)] == [False, True]


def test_a_budget_runs_down_and_never_below_zero() -> None:
    clock = itertools.count(0, 40).__next__
    budget = start_budget(1, lambda: float(clock()))
    assert budget.left == 20
    assert budget.left == 0
    assert Budget(60, 0.0, lambda: 15.0).used == 15


# -- remedies


def test_every_kind_comes_once_before_any_comes_twice() -> None:
    made = remedies_for(expose_clients(make_subject(target()), 2, 0))
    names = [name for name, _, _ in made]
    assert names[: len(DEFENCES)] == list(DEFENCES)
    changes = [name for name, _, _ in CHANGES]
    assert names[len(DEFENCES) :][: len(changes)] == changes
    assert all(names.count(name) == (1 if name in ("sign", *changes) else 2) for name in names)


def test_remedies_are_whatever_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Shrink:
        """Shrink it."""

        by: float = field(default=1.0, metadata=tried(2.0, 3.0))

        def protect_update(self, update: Tree, key: Tensor) -> Tree:
            del key
            return {name: value / self.by for name, value in update.items()}

    world = expose_clients(make_subject(target()), 2, 0)
    before = remedies_for(world)
    monkeypatch.setitem(DEFENCES, "shrink", Shrink)
    more = [each for each in remedies_for(world) if each not in before]
    assert more == [("shrink", "by 2", Shrink(2.0)), ("shrink", "by 3", Shrink(3.0))]


def test_strengths_are_in_units_of_the_update() -> None:
    subject = make_subject(target())
    small, large = expose_clients(subject, 2, 0), expose_clients(subject, 2, 0)
    rounds = tuple(replace(seen, sent={n: 8 * v for n, v in seen.sent.items()}) for seen in large.observation.rounds)
    large = replace(large, observation=replace(large.observation, rounds=rounds))
    for (name, _, one), (_, _, other) in zip(remedies_for(small), remedies_for(large), strict=True):
        for setting in ("sigma", "bound"):
            if hasattr(one, setting):
                assert getattr(other, setting) == pytest.approx(8 * getattr(one, setting), rel=1e-5), name
        assert (one == other) == (not hasattr(one, "sigma") and not hasattr(one, "bound"))


def test_remedies_join_the_configured_defences_in_an_order_that_makes_sense() -> None:
    noise = GaussianNoise(1.0)
    assert stacked((Sparsify(0.9),), noise) == (noise, Sparsify(0.9))
    assert stacked((Clip(1.0),), noise) == (Clip(1.0), noise)
    with pytest.raises(InputError):
        stacked((Clip(1.0),), Clip(2.0))


def test_ranking_weighs_what_is_gained_against_what_is_lost(truth: Batch) -> None:
    def remedy(name: str, hits: int, lost: float) -> Remedy:
        return Remedy(name, "", Sign(), run_of(truth, hits), Finding.HELPS, "", 0.5, lost)

    dear, cheap, useless = remedy("dear", 0, 0.5), remedy("cheap", 8, 0.0), remedy("useless", 40, 0.0)
    assert [r.name for r in sorted([dear, useless, cheap], key=by_cost(1.0))] == ["cheap", "dear", "useless"]
    assert [r.name for r in sorted([useless, cheap, dear], key=by_leakage)] == ["dear", "cheap", "useless"]


def test_only_a_whole_attack_that_knows_shows_that_a_remedy_helps(truth: Batch) -> None:
    control = run_of(truth, 20)  # of 40, one a client; compared example by example
    for hits, wanted in [
        (25, [Finding.USELESS] * 4),
        (20, [Finding.USELESS] * 4),
        (19, [Finding.CHANCE] * 4),
        (17, [Finding.CHANCE] * 4),  # 3 of 40 no longer: -1 to 16 %
        (14, [Finding.HELPS, Finding.BLIND, Finding.SHORT, Finding.BLIND]),  # 6 of 40: 3 to 27 %
        (0, [Finding.HELPS, Finding.BLIND, Finding.SHORT, Finding.BLIND]),
    ]:
        cases = itertools.product((True, False), (True, False))
        assert [find(run_of(truth, hits), control, whole=w, knows=k) for w, k in cases] == wanted


def test_where_nothing_came_back_before_pictures_must_be_farther_away(truth: Batch) -> None:
    def near(noise: float) -> Any:
        own = noise + 0.1 * torch.rand(40, 1, 1, 1, 1, generator=torch.Generator().manual_seed(3))
        guess = truth.inputs + own * (-1) ** torch.arange(truth.inputs.numel()).reshape(truth.inputs.shape)
        return judge(truth, guessed(guess, truth.labels), name="x")

    control = near(0.3)
    assert control.summary.content.value == 0
    assert find(near(0.3), control, whole=True, knows=True) is Finding.USELESS
    assert find(near(0.305), control, whole=True, knows=True) is Finding.CHANCE
    assert find(near(0.5), control, whole=True, knows=True) is Finding.HELPS


@pytest.mark.parametrize(("outcome", "wanted"), [(Outcome.EXHAUSTED, True), (Outcome.CONVERGED, False)])
def test_a_trial_that_used_up_its_iterations_was_cut_off(truth: Batch, outcome: Outcome, wanted: bool) -> None:
    run = run_of(truth, 0)
    ends = torch.full_like(run.reconstruction.outcome, int(Outcome.STALLED))
    ends[3] = int(outcome)
    assert cut_off(replace(run, reconstruction=replace(run.reconstruction, outcome=ends))) is wanted


def test_a_division_judges_nothing_and_the_strongest_of_the_others_does(truth: Batch) -> None:
    runs = [run_of(truth, 40, "analytic"), run_of(truth, 3, f"cpl, {INFORMED}"), run_of(truth, 9, "ig")]
    assert _judge(runs, ["cpl", f"cpl, {INFORMED}", "ig"]) == "ig"
    assert _judge(runs[:2], ["cpl", f"cpl, {INFORMED}", "ig"]) == "cpl"
    assert _judge(runs[:1], []) is None


@pytest.mark.slow
@pytest.mark.parametrize(("most", "said"), [(4, "all its iterations"), (200, "more minutes")])
def test_an_attack_that_does_not_succeed_judges_no_remedy(
    monkeypatch: pytest.MonkeyPatch, most: int, said: str
) -> None:
    monkeypatch.setattr(suite, "PUBLISHED", dict.fromkeys(suite.PUBLISHED, 1) | {"cpl": 1, "ig": most, "sme": 4})
    monkeypatch.setattr(advice, "fitting", lambda *_, **__: [])  # no time for more
    monkeypatch.setattr(advice, "iterations_within", lambda *_: 5)
    subject = make_subject(target(model=conv()))
    world = expose_clients(subject, 2, 0)
    won = judge(world.batch, guessed(world.batch.inputs, world.batch.labels), name="ig", seconds=1.0)
    made = advise(subject, world, [won], start_budget(5), SILENT, clients=2, seed=0)
    assert made.remedies == ()
    assert len(made.skipped) == len(remedies_for(world)) + len(ELSEWHERE)
    assert said in made.ranking


# -- defences on the data and on the network


@pytest.mark.slow
def test_attackers_made_for_a_policy_and_a_private_head_join_the_suite() -> None:
    policy, head = Client(on_data=Transform("3-1-7")), Client(on_model=Polarisation(alpha2=0.1, bits=8))
    for client, own in ((policy, "ig_policy"), (head, "spn_aware")):
        made = audit_target(target(model=conv(), client=client), minutes=BRIEF, clients=2, remedies=False)
        matching = {run.name for run in made.runs} - {"feature_inversion"}  # whose layer a head may keep private
        assert matching == {"cpl", "ig", f"cpl, {INFORMED}", f"ig, {INFORMED}", own}
        assert [item.what for item in made.untested] == ["analytic"]


def test_the_attacker_of_a_private_head_is_told_what_it_may_know() -> None:
    subject = make_subject(target(model=conv(), client=Client(on_model=Polarisation(alpha2=0.3, bits=8))))
    world = expose_clients(subject, 2, 0)
    entries, _ = plan_suite(subject.model, world.knowledge, world.informed, steps=1, shares=world.observation.shares)
    attack = next(entry for entry in entries if entry.name == "spn_aware").make(3)
    assert attack.simulate.alpha2 == pytest.approx(0.3)
    assert {extra.bits for extra in attack.extras.values()} == {8}


def test_the_verdict_names_what_clients_do_to_their_data_and_network() -> None:
    client = Client(on_data=Transform("3-1-7", crop=1), on_model=Polarisation(alpha2=0.25, bits=8))
    made = audit_target(target(), minutes=BRIEF, clients=1, remedies=False)
    assert made.exposure is not None
    assert audit_record(made)["client"]["on its data"] == NOTHING
    made = replace(made, exposure=replace(made.exposure, client=client))
    data, network = "policy 3-1-7 (translate_x", "a private head (alpha2 0.25, alpha1 1, margin 1, bits 8)"
    page = page_of_audit(made, command="x")
    shown = {what: words[0] for what, words in page.threat.setting}
    assert f"on its data: {data}" in str(made)
    assert f"on its network: {network}" in str(made)
    assert shown["on its data"].startswith(data)
    assert shown["on its data"].endswith("border of 1 pixels")
    assert shown["on its network"] == network
    assert network in render(page)
    assert audit_record(made)["client"]["on its network"] == network


def test_where_no_remedy_helps_the_page_says_so() -> None:
    made = audit_target(target(), minutes=BRIEF, clients=2, remedies=False)
    why = "in the time left the attack recovers too little even without one"
    helps = page_of_audit(replace(made, advice=Advice((), why)), command="x").findings[-1]
    assert why in helps.words
    assert not helps.lines


def test_too_many_draws_are_left_to_the_attack_that_learns_them() -> None:
    client = Client(on_data=Transform("3-1-7"))  # 8 ways a picture: 8^3 for three
    subject = make_subject(target(model=conv(), client=client, examples=3))
    world = expose_clients(subject, 2, 0)
    entries, _ = plan_suite(subject.model, world.knowledge, world.informed, steps=1, shares=world.observation.shares)
    assert [entry.name for entry in entries] == [
        "feature_inversion",
        "cpl",
        f"cpl, {INFORMED}",
        "ig",
        f"ig, {INFORMED}",
    ]


def test_a_file_may_transform_pictures_and_hide_a_head(tmp_path: Path) -> None:
    path = tmp_path / "audit.yaml"
    path.write_text(
        "model: lenet_cpl\ndata: {name: digits}\nclient: {epochs: 2, rate: 0.05}\n"
        "on_data: {policy: 3-1-7}\non_model: {alpha2: 0.2, bits: 16}\n"
    )
    client = read_request(path).target.client
    assert isinstance(client, Client)
    assert client.local == LocalTraining(epochs=2, rate=0.05)
    assert client.on_data == Transform("3-1-7")
    assert client.on_model == Polarisation(alpha2=0.2, bits=16)


def test_accuracy_is_measured_by_a_short_training_and_falls_with_noise() -> None:
    inputs, labels = sample(60)
    subject = make_subject(target(inputs=inputs, labels=labels))
    course = find_course(subject, rounds=20)
    assert isinstance(course, Course)
    assert course.accuracy > 0.6
    assert accuracy_with(course, ()) == course.accuracy
    assert accuracy_with(course, (Clip(0.01),)) == pytest.approx(course.accuracy, abs=0.1)
    assert accuracy_with(course, (GaussianNoise(100.0),)) < course.accuracy - 0.2


def test_too_small_a_sample_says_so() -> None:
    said = find_course(make_subject(target()))
    assert isinstance(said, str)
    assert "40 are needed" in said


# -- captures


def captured(
    directory: Path,
    *,
    examples: int | None = 2,
    model: nn.Module | None = None,
    config: dict[str, Any] | None = None,
    number: int = 1,
) -> None:
    """Write two clients, two examples each, that took one step of plain SGD."""
    inputs, labels = sample()
    for own in (0, 1):
        module = conv() if model is None else model
        before = {n: v.clone() for n, v in module.state_dict().items()}
        x, y = inputs[2 * own : 2 * own + 2], labels[2 * own : 2 * own + 2]
        gradient = torch.autograd.grad(nn.functional.cross_entropy(module(x), y), list(module.parameters()))
        names = [name for name, _ in module.named_parameters()]
        sent = before | {n: before[n] - 0.1 * g for n, g in zip(names, gradient, strict=True)}
        settings = {"lr": 0.1, "epochs": 1, "batch-size": 9} if config is None else config
        write_capture(
            directory,
            Capture(
                round=number,
                client=str(own),
                before=before,
                sent=sent,
                partition=own,
                examples=examples,
                config=settings,
            ),
        )


def truth_of(partition: int) -> tuple[Tensor, Tensor]:
    inputs, labels = sample()
    return inputs[2 * partition : 2 * partition + 2], labels[2 * partition : 2 * partition + 2]


def test_captures_are_scored_where_the_truth_is_known(tmp_path: Path) -> None:
    captured(tmp_path)
    made = audit_captures(tmp_path, target(model=conv(), truth=truth_of), minutes=0.1)
    assert made.measures.asr is not None
    assert made.measures.asr.n == 4
    assert {run.name for run in made.runs} == {"feature_inversion", "cpl", "ig"}  # the config: one step of SGD


def test_captures_without_truth_are_unscored(tmp_path: Path) -> None:
    captured(tmp_path)
    made = audit_captures(tmp_path, Target(model=conv(), input_shape=(1, 4, 4)), minutes=BRIEF)
    assert made.grade == "unscored"
    assert {run.name for run in made.unscored} == {"feature_inversion", "cpl", "ig", "prior_only"}
    assert made.failures({"asr": 0.5})
    assert "mismatch" in str(made)
    assert "unscored" in render(page_of_audit(made, command="x"))
    assert json.loads(json.dumps(audit_record(made)))["grade"] == "unscored"


def test_what_captures_do_not_tell_is_inferred(tmp_path: Path) -> None:
    captured(tmp_path, examples=None, model=dense(), config={})
    made = audit_captures(tmp_path, Target(model=dense(), input_shape=(1, 4, 4)), minutes=BRIEF)
    said = " ".join(made.notes)
    assert "2 taken" in said  # the rank of the first layer's change
    assert "rate times steps" in said
    assert {run.name for run in made.unscored} >= {"analytic", "cpl", "ig"}


def test_captures_of_the_fewest_examples_are_attacked(tmp_path: Path) -> None:
    captured(tmp_path)
    captured(tmp_path, examples=9, number=2)
    made = audit_captures(tmp_path, Target(model=conv(), input_shape=(1, 4, 4)), minutes=BRIEF)
    assert any("2 of 4 captures" in note for note in made.notes)
    assert made.unscored[0].reconstruction.inputs.shape[:2] == (2, 2)


def test_captures_of_another_model_or_another_truth_are_refused(tmp_path: Path) -> None:
    captured(tmp_path)
    with pytest.raises(InputError, match="another model"):
        audit_captures(tmp_path, target(model=dense()), minutes=BRIEF)
    with pytest.raises(InputError, match="must give 2 inputs"):
        audit_captures(tmp_path, target(model=conv(), truth=lambda _: sample(3)), minutes=BRIEF)
    with pytest.raises(InputError, match="input_shape"):
        audit_captures(tmp_path, Target(model=conv()), minutes=BRIEF)


def test_structure_tells_pictures_from_noise() -> None:
    ramp = torch.linspace(0, 1, 16).expand(2, 1, 1, 16, 16)
    noise = torch.rand(2, 1, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    assert bool((structure(ramp) < 0.3).all())
    assert bool(((structure(noise) - 1).abs() < 0.2).all())
    assert bool(structure(torch.rand(2, 1, 9)).isnan().all())


# -- where targets come from


def test_a_function_by_name_builds_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "audited_module.py").write_text(
        "import torch\n"
        "def build(): return {'model': torch.nn.Linear(4, 2), 'inputs': torch.rand(8, 4), 'labels': torch.arange(8) % 2}\n"
        "def module(): return torch.nn.Linear(4, 2)\n"
        "def number(): return 3\n"
        "def typo(): return {'modle': 3}\n"
        "def fails(): raise RuntimeError('no weights\\nsecond line')\n"
    )
    monkeypatch.chdir(tmp_path)
    assert load_build("audited_module:build").inputs is not None
    assert load_build("audited_module:module").inputs is None
    for name, said in [
        ("audited_module:number", "return a Target"),
        ("audited_module:typo", "modle"),
        ("audited_module:fails", r"RuntimeError: no weights$"),
        ("audited_module:missing", "has no function"),
        ("no_such_module_here:build", "cannot be imported"),
        ("nonsense", "package.module:function"),
        ("../evil:build", "package.module:function"),
    ]:
        with pytest.raises(InputError, match=said):
            load_build(name)


def test_a_python_file_is_told_by_the_name_it_is_imported_under(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "project" / "federation"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "audit.py").write_text("def build(): return None\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f"federation.audit:build .*{tmp_path / 'project'}$"):
        read_request(Path("project/federation/audit.py"))
    with pytest.raises(InputError, match=r"contains federation,.* install"):
        load_build("federation.audit:build")
    monkeypatch.chdir(tmp_path / "project")
    with pytest.raises(InputError, match=r"such as federation\.audit:build$"):
        read_request(Path("federation/audit.py"))
    with pytest.raises(InputError, match=r"function.* federation\.audit:build$"):
        load_build("federation.audit")


def test_a_file_says_what_to_audit(tmp_path: Path) -> None:
    path = tmp_path / "audit.yaml"
    path.write_text(
        "model: lenet_cpl\ndata: {name: digits}\nclient: {epochs: 2, batch_size: 1, rate: 0.05}\n"
        "defences: [{name: clip, bound: 1.0}]\nexamples: 2\nminutes: 0.5\nclients: 3\nseed: 4\n"
        "fail_above: {asr: 0.05, psnr: 18}\n"
    )
    request = read_request(path)
    assert isinstance(request.target.client, Client)
    assert request.target.client.local == LocalTraining(epochs=2, batch_size=1, rate=0.05)
    assert request.target.defences == (Clip(1.0),)
    assert (request.minutes, request.clients, request.seed, request.target.examples) == (0.5, 3, 4, 2)
    assert request.limits == {"asr": 0.05, "psnr": 18.0}
    assert make_subject(replace(request.target, client=None)).model.classes == 10


@pytest.mark.parametrize("gate", ["", "{}", "{asr: }", "{asr: , psnr: 18}"])
def test_a_file_with_an_empty_gate_is_refused(tmp_path: Path, gate: str) -> None:
    path = tmp_path / "audit.yaml"
    path.write_text(f"model: lenet_cpl\ndata: {{name: digits}}\nfail_above: {gate}\n")
    with pytest.raises(InputError, match=r"yaml:3: fail_above: .* empty, which would let everything pass"):
        read_request(path)


def test_data_may_be_named_by_a_word_as_in_a_scenario(tmp_path: Path) -> None:
    path = tmp_path / "audit.yaml"
    path.write_text("model: lenet_cpl\ndata: digits\n")
    short = read_request(path).target
    path.write_text("model: lenet_cpl\ndata: {name: digits}\n")
    long = read_request(path).target
    assert short.inputs is not None
    assert long.inputs is not None
    assert torch.equal(short.inputs, long.inputs)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("[1]", "mapping"),
        ("build: x:y\nmodel: lenet_cpl\ndata: {name: digits}", "build, or model"),
        ("model: lenet_cpl", "belong together"),
        ("clinet: {}", "clinet"),
        ("model: lenet_cpl\ndata: {name: digits}\nclient: {rate: -1.0}", "rate .*above 0"),
        ("model: lenet_cpl\ndata: digitts", "digitts"),
        ("model: project:net\ndata: digits", "audit.yaml:1: model: .*write build: project:net"),
        ("model: lenet_cpl\ndata: {name: digits, samples: 4}", "data.samples .*examples"),
        ("model: lenet_cpl\ndata: {name: digits, mix: equal}", "data.mix .*scenarios"),
        ("model: lenet_cpl\ndata: {name: digits}\nfail_above: {mse: 1}", "mse"),
        ("model: lenet_cpl\ndata: {name: digits}\ndefences: [clipp]", "clipp"),
        ("a: *b", "YAML"),
    ],
)
def test_mistakes_in_a_file_are_told(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "audit.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_request(path)


@pytest.mark.parametrize(
    ("text", "path", "near"),
    [
        ("model: mlp\ndata: digits\nclinet: {}", ("clinet",), "client"),
        ("data: digits\nclients: 1\nmodel: lenet_clp", ("model",), "lenet_cpl"),
        ("model: mlp\nclients: 1\ndata: digitts", ("data",), "digits"),
        ("model: mlp\nclients: 1\ndata: {name: digits, prat: test}", ("data", "prat"), "part"),
        ("model: mlp\ndata: digits\ndefences: [clipp]", ("defences", 0), "clip"),
        ("model: mlp\ndata: digits\ndefences: [{name: clip, buond: 1}]", ("defences", 0, "buond"), "bound"),
        ("model: mlp\ndata: digits\nfail_above: {asrr: 1}", ("fail_above", "asrr"), "asr"),
    ],
)
def test_a_typo_in_a_file_is_told_with_its_line_and_the_nearest_name(
    tmp_path: Path, text: str, path: tuple[str | int, ...], near: str
) -> None:
    file = tmp_path / "audit.yaml"
    file.write_text(text)
    with pytest.raises(ScenarioError) as told:
        read_request(file)
    [problem] = told.value.problems
    assert (problem.path, problem.line) == (path, 3)
    assert f"did you mean '{near}'" in problem.message


def test_all_mistakes_of_values_in_a_file_are_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "audit.yaml"
    file.write_text(
        "model: mlp\ndata: digitts\nclient: {optimiser: sdg}\ndefences: [{name: clip, bound: 1}, {name: clip, bound: -1}]\n"
    )
    with pytest.raises(ScenarioError) as told:
        read_request(file)
    places = [(problem.path, problem.line) for problem in told.value.problems]
    assert places == [(("data",), 2), (("client", "optimiser"), 3), (("defences", 1, "bound"), 4)]


def test_a_misspelt_loss_is_told_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'cross_entropy'"):
        make_subject(target(loss="cross_entrpy"))
