"""The tutorial on DP-SGD runs: without noise digits come back and the network learns, at a small epsilon neither happens."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "dp_sgd.py"


@pytest.fixture
def script() -> ModuleType:
    pytest.importorskip("opacus")
    spec = importlib.util.spec_from_file_location("dp_sgd", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules["dp_sgd"] = made  # dataclasses look their module up
    spec.loader.exec_module(made)
    return made


def test_the_table_of_the_tutorial(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--rounds", "20", "--clients", "4", "--iterations", "60"]
    plain, private = script.main(["--epsilons", "inf", "1", *sizes])
    assert (plain.multiplier, plain.leak.content.value, plain.leak.label.value) == (0.0, 1.0, 1.0)
    assert private.multiplier > 1
    assert private.leak.content.value == 0
    assert private.leak.means["psnr"].value < 10 < plain.leak.means["psnr"].value
    assert private.accuracy.high < plain.accuracy.low
    assert (plain.accuracy.n, plain.leak.content.n) == (360, 4)
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[0] for line in shown] == ["| epsilon", "| no noise", "| 1"]


def test_the_page_has_the_epsilons_of_the_script(script: ModuleType) -> None:
    page = (SCRIPT.parents[1] / "docs/how-to/dp-sgd.md").read_text(encoding="utf-8")
    for epsilon in script.EPSILONS:
        assert f"\n| {'no noise' if epsilon == math.inf else f'{epsilon:,.0f}'} |" in page
