"""The example plug-in, named by --import and as an installed package, in every command and on every engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from command_line import leakscope, write
from leakscope.attacks.recipes import prior_only
from leakscope.auditing import attack_runs, suite
from leakscope.core.errors import InputError
from leakscope.core.plugins import import_plugin, origin, plugin_imports
from leakscope.store import Run
from leakscope.sweep.engines import processes
from leakscope.sweep.engines.parcels import attempt, pack, unpack
from own_pieces import EXAMPLE, PACKAGE, install, install_example, no_plugins, short_scenario
from sweeper import content, small, sweep

PIECES = {"attack ig_patterned", "defence thin_out", "data set stripes", "model small_conv", "metric edge_error"}


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    with no_plugins():
        yield


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run of the example in one process."""
    directory = tmp_path_factory.mktemp("plugin")
    file, out = write(directory / "short.yaml", short_scenario()), directory / "run"
    with no_plugins(), pytest.MonkeyPatch.context() as patch:
        patch.chdir(EXAMPLE)
        done = leakscope("run", file, "--import", PACKAGE, "--engine", "serial", "--out", out, "--quiet")
    assert done.code == 0, done.err
    return out


def test_a_run_records_its_pieces_and_scores_with_its_metric(reference: Path) -> None:
    run = Run.open(reference)
    facts = run.facts()
    assert facts["imports"] == PACKAGE
    assert set(facts["own pieces"].split(", ")) == PIECES
    assert f"--import {PACKAGE}" in facts["command"]
    assert all(0 < record.learned["edge_error"] < 1 for record in run.records())
    assert leakscope("show", reference).code == leakscope("report", reference).code == 0  # these need no names
    page = (reference / "report.html").read_text(encoding="utf-8")
    assert PACKAGE in page
    assert "edge_error" in page


@pytest.mark.slow
def test_import_works_with_worker_processes(reference: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["run", reference.parent / "short.yaml", "--import", PACKAGE, "--workers", 2, "--out", out, "--quiet"]
    arguments = [sys.executable, "-m", "leakscope", *map(str, words)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(arguments, check=False, capture_output=True, text=True, timeout=240, cwd=EXAMPLE, env=env)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert content(out) == content(reference)


@pytest.mark.slow
def test_an_installed_package_works_with_worker_processes(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(install_example(tmp_path / "site")))
    out = tmp_path / "run"
    done = leakscope("run", reference.parent / "short.yaml", "--workers", 2, "--out", out, "--quiet")
    assert (done.code, done.err) == (0, "")
    assert content(out) == content(reference)
    assert Run.open(out).facts()["imports"] == PACKAGE
    again = leakscope("run", reference.parent / "short.yaml", "--out", reference, "--quiet")  # begun with --import
    assert again.code == 0


def test_a_run_goes_on_only_with_its_modules(reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = leakscope("run", reference.parent / "short.yaml", "--out", reference)
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert f"--import {PACKAGE}" in done.err
    lost = leakscope("run", reference.parent / "short.yaml", "--out", reference, "--import", PACKAGE)
    assert (lost.code, lost.err.count("\n")) == (2, 1)


def test_the_catalogue_names_the_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLE)
    monkeypatch.setenv("COLUMNS", "300")
    for kind, name in (piece.rsplit(" ", 1) for piece in PIECES):
        shown = leakscope("list", "data" if kind == "data set" else f"{kind}s", "--import", PACKAGE)
        line = next(line for line in shown.out.splitlines() if f" {name} " in line)
        assert PACKAGE in line
        assert sum(PACKAGE in line for line in shown.out.splitlines()) == 1
    assert leakscope("list", "atacks").code == 2
    assert leakscope("data", "list", "--import", PACKAGE).out.count("stripes") == 1
    schema = json.loads(leakscope("schema", "--import", PACKAGE).out)
    assert "ig_patterned" in json.dumps(schema)


def test_a_training_uses_own_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLE)
    training = {
        "data": "stripes",
        "partition": {"name": "iid", "clients": 4},
        "model": "small_conv",
        "client": {"local": {"rate": 0.1}},
        "defences": ["thin_out"],
        "rounds": 1,
        "precision": {"form": "native"},
    }
    file, out = write(tmp_path / "train.yaml", training), tmp_path / "run"
    assert leakscope("train", file, "--out", out).code == 2
    done = leakscope("train", file, "--import", PACKAGE, "--out", out, "--quiet")
    assert done.code == 0, done.err
    assert PACKAGE in (out / "index.html").read_text(encoding="utf-8")
    with no_plugins():
        lost = leakscope("train", file, "--out", out)
    assert lost.code == 2
    assert f"--import {PACKAGE}" in lost.err


BRIEF = """
import dataclasses, leakscope

def brief(*, iterations: int = 2) -> leakscope.attacks.Matching:
    return dataclasses.replace(leakscope.cpl(iterations=iterations), name="brief")

leakscope.register_attack("brief", brief)
"""


@pytest.mark.slow
def test_an_audit_uses_own_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "brief_pieces.py").write_text(BRIEF)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.setattr(suite, "PUBLISHED", dict.fromkeys(suite.PUBLISHED, 1) | {"cpl": 1, "ig": 1, "sme": 1})
    monkeypatch.setattr(attack_runs, "prior_only", partial(prior_only, iterations=2))
    words = f"audit {EXAMPLE / 'audit.yaml'} --attack brief --clients 2 --no-remedies --quiet --import {PACKAGE}"
    assert leakscope(*words.split()).code == 2  # no attack is called brief
    more = "--import brief_pieces --fail-above asr=1 --out out"
    assert leakscope(*words.split(), *more.split()).code == 1  # ig was left out, so no gate is passed
    record = json.loads(Path("out/audit.json").read_text(encoding="utf-8"))
    assert {run["name"] for run in record["attacks"]} == {"brief", f"brief, {suite.INFORMED}"}
    assert all(0 < run["metrics"]["edge_error"] < 1 for run in (*record["attacks"], *record["null_baselines"]))
    left_out = {item["what"].partition(",")[0] for item in record["untested"] if item["left_out"]}
    assert left_out == {"cpl", "feature_inversion", "ig"}
    page = Path("out/index.html").read_text(encoding="utf-8")
    assert f"brief, {suite.INFORMED}" in page
    assert "edge_error" in page


def test_a_broken_plugin_is_one_line_and_everything_else_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = install(tmp_path / "site", {"broken": "broken_pieces"})
    (site / "broken_pieces.py").write_text("import no_such_module_anywhere\n")
    monkeypatch.syspath_prepend(str(site))
    assert leakscope("--help").err == ""  # no plug-in is loaded for it
    shown = leakscope("list", "metrics")
    assert shown.code == 0
    assert "psnr" in shown.out
    assert [("broken_pieces" in line) for line in shown.err.splitlines()] == [True]
    used = leakscope("run", write(tmp_path / "short.yaml", short_scenario()))
    assert used.code == 2
    assert len(used.err.splitlines()) == len(PIECES)
    assert all("broken_pieces" in line for line in used.err.splitlines())


def test_pieces_of_a_script_run_in_its_own_process(tmp_path: Path) -> None:
    exec("import leakscope; leakscope.register_attack('scripted', leakscope.cpl)", {"__name__": "__main__"})
    scenario = small(attacks=[{"name": "scripted", "iterations": 1}], trials=1, seeds=[0], baselines=[])
    with pytest.raises(InputError, match="__main__"):
        sweep(tmp_path / "refused", scenario, engine=processes(2))
    assert not (tmp_path / "refused").exists()
    assert sweep(tmp_path / "run", scenario, engine=None, workers=2).left == 0
    assert plugin_imports() == ()


def test_a_worker_that_lacks_a_module_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "here" / "soon_gone.py"
    module.parent.mkdir()
    module.write_text("import leakscope\nleakscope.register_attack('soon_gone', leakscope.cpl)\n")
    monkeypatch.chdir(module.parent)
    with no_plugins():
        import_plugin("soon_gone")
        packed = pack(len, "abc")
    monkeypatch.chdir(tmp_path)  # a worker looks where the driver found it
    with no_plugins():
        assert unpack(attempt(packed, threads=1, on_note=None), "chunk", {}) == 3
        assert origin("attack", "soon_gone") == "soon_gone"
    module.unlink()
    with no_plugins(), pytest.raises(InputError, match="soon_gone"):
        unpack(attempt(packed, threads=1, on_note=None), "chunk", {})
