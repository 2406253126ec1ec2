"""An attack that cannot work on its client, or with what it is told, is refused when the file is read, with its line."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from leakscope.scenario import Problem
from leakscope.scenario.problems import ScenarioError
from leakscope.scenario.scenario import scenario_from_text
from leakscope.store import Run
from leakscope.sweep.driver import unfold
from leakscope.sweep.fit_checks import MisfitError
from sweeper import sweep

LOCAL = "{local: {epochs: 2, batch_size: 2, rate: 0.1}}"
ADAM = "{local: {epochs: 2, batch_size: 2, rate: 0.1, optimiser: adam}}"
TOLD, UNTOLD = "{labels: true, local: true}", "{labels: true, local: false}"


def text(attack: str, client: str = "{}", knowledge: str = TOLD, samples: int = 3, model: str = "mlp") -> str:
    return "\n".join(
        [
            f"data: {{name: digits, samples: {samples}}}",
            f"model: {{name: {model}, hidden: [8]}}",
            f"client: {client}",
            f"knowledge: {knowledge}",
            "attacks:",
            "  - {name: ig, iterations: 1}",
            f"  - {{name: {attack}, iterations: 1}}",
            "trials: 1",
            "baselines: []",
            "precision: {form: native}",
        ]
    )


def table(attack: str) -> str:
    return (
        text(attack, LOCAL)
        .replace("{name: digits, samples: 3}", "{name: breast_cancer, samples: 3}")
        .replace("  - {name: ig, iterations: 1}\n", "  - {name: ig, iterations: 1, tv: 0}\n")
    )


def dropping(client: str) -> str:
    told = "{labels: true, local: true, defence: true, dropout: true}"
    return text("cpl, labels: known", client, told, 1, "lenet_cpl").replace("hidden: [8]", "width: 2, dropout: 0.3")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            table("matching, priors: [total_variation], labels: known"),
            r"attacks\.1\.priors: total variation",
        ),
        (table("sme"), r"attacks\.1\.tv: .*tv: 0"),
        (
            text("dlfa", LOCAL) + "\ndefences: [sign]",
            r"attacks\.1: dlfa .*knowledge\.defence: false",
        ),
        (
            text("ig_policy", "{on_data: {policy: 3-1-7}}", "{defence: false}"),
            r"attacks\.1: ig_policy .*transformations",
        ),
        (text("sme"), r"attacks\.1: sme .*client\.local, .*ig"),
        (text("dlfa"), r"attacks\.1: dlfa .*local training"),
        (
            text("dlfa", LOCAL, UNTOLD),
            r"attacks\.1: dlfa .*knowledge\.local: true",
        ),
        (text("cpl, labels: auto", LOCAL, UNTOLD), r"attacks\.1: cpl .*knowledge\.local: true"),
        (
            text("cpl, labels: auto", ADAM),
            r"attacks\.1: cpl .*Adam.*ig_update, sme or dlfa",
        ),
        (text("idlg"), r"attacks\.1\.labels: .*'idlg' .*data\.samples is 3: .*counts"),
        (
            text("ig, labels: known", knowledge="{labels: false}"),
            r"attacks\.1\.labels: .*'known' .*knowledge\.labels: true",
        ),
        (
            text("ig, labels: counts", model="mlp_sme"),
            r"attacks\.1\.labels: .*'mlp_sme' .*use 'joint'",
        ),
    ],
)
def test_it_is_refused_with_its_line(written: str, said: str) -> None:
    with pytest.raises(ScenarioError, match=rf"^s\.yaml:7: {said}") as error:
        unfold(scenario_from_text(written, "s.yaml"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (dropping(LOCAL), r"4: knowledge\.dropout: "),
        (dropping("{rounds: 2}"), r"4: knowledge\.dropout: "),
        (
            text("ig_policy", "{on_data: {policy: 3-1-7}, rounds: 2}", "{defence: true}"),
            r"3: client\.rounds: ig_policy ",
        ),
    ],
    ids=["masks, local steps", "masks, rounds", "transformations, rounds"],
)
def test_what_a_client_draws_more_than_once_is_refused_where_the_attacker_needs_it(written: str, said: str) -> None:
    with pytest.raises(ScenarioError, match=rf"^s\.yaml:{said}"):
        unfold(scenario_from_text(written, "s.yaml"))
    assert unfold(scenario_from_text(written.replace("rounds: 2", "rounds: 1").replace(LOCAL, "{}"), "s.yaml")).trials


@pytest.mark.parametrize(
    "written",
    [
        text("sme", LOCAL, UNTOLD),
        text("ig_update", LOCAL, UNTOLD),
        text("dlfa", LOCAL),
        text("cpl, labels: auto", LOCAL),
        text("idlg", samples=1),
        text("ig, labels: counts"),
        text("dlg", model="mlp_sme"),
    ],
)
def test_what_can_work_is_not_refused(written: str) -> None:
    assert unfold(scenario_from_text(written, "s.yaml")).trials


def test_an_attack_of_one_point_of_an_axis_is_refused_there() -> None:
    written = text("sme", LOCAL, UNTOLD) + "\ngrid:\n  knowledge.labels: [true]\n  client.local: [null]"
    with pytest.raises(ScenarioError, match=r"^s\.yaml:7: attacks\.1: sme "):
        unfold(scenario_from_text(written, "s.yaml"))


@pytest.mark.parametrize("measure", [True, False])
def test_a_client_whose_training_diverges_is_named_by_its_rate(tmp_path: Path, measure: bool) -> None:
    wild = "{local: {epochs: 5, rate: 0.1}}"
    grid = "\ngrid:\n  client.local.rate:\n    - 0.1\n    - 1.0e+30"
    written = text("sme", wild, UNTOLD) + grid
    with pytest.raises(ScenarioError, match=r"^s\.yaml:14: .*NaN.* 1e\+30"):
        sweep(tmp_path / "r", scenario_from_text(written, "s.yaml"), measure=measure)
    assert not measure or not Run.exists(tmp_path / "r"), "measured before anything is written"


def test_noise_beyond_all_numbers_is_named_and_not_the_first_weights(tmp_path: Path) -> None:
    written = text("cpl") + "\ndefences: [{name: gaussian_noise, sigma: 3.0e+38}]"
    with pytest.raises(ScenarioError) as caught:
        sweep(tmp_path / "r", scenario_from_text(written, "s.yaml"))
    assert [problem.path[0] for problem in caught.value.problems] == ["defences"]


def test_such_an_error_comes_whole_from_another_process() -> None:
    error = MisfitError(Problem(("client", "local", "rate"), "too fast"), "a cell")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (str(again), again.problem, again.cell) == ("too fast", error.problem, "a cell")
