"""Every file of examples/ is what it says: a scenario or a training that runs, here at a fraction of its size, or an audit that is read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from leakscope.auditing.target_file import read_request
from leakscope.scenario import read_scenario, scenario_of
from leakscope.scenario.text import read_text
from leakscope.training import read_training, run_training, training_of
from own_pieces import no_plugins
from sweeper import kind_of, short_example, sweep

ROOT = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(ROOT.rglob("*.yaml"))
LONG = ("dlfa",)


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.slow] * (path.stem in LONG)) for path in EXAMPLES],
    ids=[path.stem for path in EXAMPLES],
)
def test_an_example_runs_at_a_small_size(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    with no_plugins():
        if path.parent.name == "plugin":
            sys.path.insert(0, str(path.parent))
            __import__("leakscope_stripes")
        kind, short = kind_of(path), short_example(path)
        if kind == "training":
            read_training(path)
            result = run_training(training_of(short), tmp_path)
            assert max(result.checkpoints) == 2
        elif kind == "audit":
            target = read_request(path).target
            assert target.inputs is not None
            assert len(target.inputs)
        else:
            whole = read_scenario(path)
            again = scenario_of(read_text(whole.text).data)  # type: ignore[arg-type]
            assert [cell.id for cell in whole.cells()] == [cell.id for cell in again.cells()]
            done = sweep(tmp_path / "run", scenario_of(short))
            assert done.left == 0
            assert done.wanted >= 2


def test_every_kind_of_file_is_among_the_examples() -> None:
    kinds = {kind_of(path) for path in EXAMPLES}
    assert kinds == {"scenario", "training", "audit"}
    assert {"text", "theory", "noise"} <= {path.stem for path in EXAMPLES if kind_of(path) == "scenario"}
