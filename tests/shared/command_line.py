"""The command line run in this process, and a small scenario for it."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from leakscope.cli import main

ONE_STEP = {"name": "lbfgs", "inner": 1}  # an iteration of one evaluation, not of up to 20
TINY: dict[str, Any] = {
    "data": "digits",
    "model": {"name": "mlp", "hidden": [16]},
    "weights": {"name": "uniform", "a": 0.3},
    "attack": {"name": "cpl", "iterations": 1, "optimiser": ONE_STEP},
    "defences": [{"name": "gaussian_noise", "sigma": 0}],
    "knowledge": {"defence": False},
    "trials": 2,
    "baselines": [],
    "precision": {"form": "native", "chunk": 1},
}


@dataclass(frozen=True, slots=True)
class Output:
    """The exit code of a command and what it printed."""

    code: int
    out: str
    err: str


def leakscope(*words: object) -> Output:
    """Run the command line in this process, as `python -m leakscope` does in its own."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["leakscope", *map(str, words)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        sys.argv = before
    return Output(code, out.getvalue(), err.getvalue())


def write(path: Path, scenario: dict[str, Any] | str) -> Path:
    text = scenario if isinstance(scenario, str) else yaml.safe_dump(scenario, sort_keys=False, allow_unicode=True)
    path.write_text(text, encoding="utf-8")
    return path


def events(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def numbers_in(line: str) -> list[int]:
    """Return the whole numbers of a line, in order."""
    return [int(number.replace(",", "")) for number in re.findall(r"(?<![\w.])\d[\d,]*(?!\w)", line)]
