"""`leakscope audit` on a function, a file and captures: what it prints, writes and exits with."""

from __future__ import annotations

import csv
import io
import json
import re
import textwrap
from functools import partial
from pathlib import Path

import pytest
import torch
import typer
from torch import nn
from typer.testing import CliRunner

from leakscope.attacks.recipes import prior_only
from leakscope.auditing import attack_runs, suite, target_audit
from leakscope.auditing.result import Audit
from leakscope.auditing.static.facts import Topic
from leakscope.auditing.target_audit import CLIENTS, MINUTES
from leakscope.auditing.verdict import Grade
from leakscope.cli import app
from leakscope.cli.audit import write_audit
from leakscope.core.errors import InputError, UnknownNameError
from leakscope.store.captures import Capture, write_capture

BRIEF = ["--minutes", "0.5", "--clients", "2", "--no-remedies", "--quiet"]
MODULE = """
from dataclasses import replace
import torch
from torch import nn
from leakscope.auditing import Target
from leakscope.defences import GaussianNoise

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.Sigmoid(), nn.Linear(6, 2))

def build():
    generator = torch.Generator().manual_seed(0)
    return Target(model=net(), inputs=torch.rand(12, 1, 4, 4, generator=generator), labels=torch.arange(12) % 2)

def noisy():
    return replace(build(), defences=(GaussianNoise(1e3),))

def blind():
    return Target(model=net(), input_shape=(1, 4, 4))

class OneHot(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(9, 3)

    def forward(self, x):
        return self.head(nn.functional.one_hot(x, 9).float().mean(1))

def one_hot():
    return Target(model=OneHot(), inputs=torch.randint(9, (12, 4)), labels=torch.arange(12) % 2)

def tokens():
    return Target(model=nn.Embedding(9, 3), inputs=torch.randint(9, (12, 4)), labels=torch.arange(12) % 2)
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cli_audited.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "cli_audited", raising=False)
    monkeypatch.setattr(suite, "PUBLISHED", dict.fromkeys(suite.PUBLISHED, 1) | {"cpl": 1, "ig": 2, "sme": 2})
    monkeypatch.setattr(attack_runs, "prior_only", partial(prior_only, iterations=2))
    return tmp_path


def run(*words: str) -> tuple[int, str]:
    """Return exit code and everything printed; a refused input is raised as it is."""
    done = CliRunner().invoke(app, ["audit", *words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def test_a_leaky_model_is_graded_written_and_fails_the_gate(place: Path) -> None:
    code, text = run("cli_audited:build", *BRIEF, "--out", "out", "--fail-above", "asr=0.05,psnr=18")
    assert code == 1
    assert "grade F" in text
    assert re.search(r"gate failed: asr .* 1, .* 0\.05", text)
    told = json.loads((place / "out" / "audit.json").read_text())
    assert told["grade"] == "F"
    assert told["asr"]["n"] == 2
    assert "Grade F" in (place / "out" / "index.html").read_text()


def test_json_is_the_record_and_a_report_of_the_directory_names_its_page(place: Path) -> None:
    code, text = run("cli_audited:build", *BRIEF, "--json", "--out", "out")
    assert code == 0
    assert json.loads(text[: text.rindex("}") + 1]) == json.loads((place / "out" / "audit.json").read_text())
    refused = CliRunner().invoke(app, ["report", "out"])
    assert "out/index.html" in str(refused.exception)


def test_without_a_gate_a_leak_is_no_error() -> None:
    code, text = run("cli_audited:build", *BRIEF)
    assert code == 0
    assert "cpl" in text


def test_an_audit_cut_short_is_inconclusive_and_passes_no_gate(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "PUBLISHED", dict.fromkeys(suite.PUBLISHED, 1) | {"cpl": 10_000, "ig": 10_000})
    short = ["--minutes", "0.02", "--clients", "2", "--no-remedies"]
    code, _ = run("cli_audited:noisy", *short, "--fail-above", "asr=1", "--out", "out")
    told = json.loads((place / "out" / "audit.json").read_text())
    assert (code, told["grade"]) == (1, "inconclusive")
    assert told["unfinished"]
    assert told["minutes_needed"] > 0.02
    assert run("cli_audited:noisy", *short)[0] == 0


def test_an_untested_model_never_passes_a_gate() -> None:
    code, text = run("cli_audited:one_hot", *BRIEF, "--fail-above", "asr=0.99")
    assert code == 1
    assert "untested" in text
    assert "was not measured" in text


def test_a_file_brings_its_own_gate_and_options_stand_above_it(place: Path) -> None:
    (place / "audit.yaml").write_text("build: cli_audited:build\nclients: 3\nfail_above: {asr: 0.05}\n")
    code, text = run("audit.yaml", *BRIEF)
    assert code == 1
    assert re.search(r"\b2 of 2\b", text)
    assert run("audit.yaml", *BRIEF, "--fail-above", "asr=1")[0] == 0


@pytest.mark.parametrize("gate", ["asr: 5", "ssim: -1", "labels: .nan", "psnr: .inf"])
def test_a_file_whose_gate_means_nothing_is_refused(place: Path, gate: str) -> None:
    (place / "audit.yaml").write_text(f"build: cli_audited:build\nfail_above: {{{gate}}}\n")
    with pytest.raises(InputError, match="fail_above"):
        run("audit.yaml", *BRIEF)


def test_the_help_says_the_defaults_that_are_used() -> None:
    """Reading them from where they stand would load torch for every command."""
    told = {option.name: option.help or "" for option in typer.main.get_command(app).commands["audit"].params}  # type: ignore[attr-defined]
    assert f"; {MINUTES:g} if not given" in told["minutes"]
    assert f"; {CLIENTS} if not given" in told["clients"]


def test_captures_need_a_model_and_are_audited_with_one(place: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.Sigmoid(), nn.Linear(6, 2))
    before = {name: value.detach() for name, value in net.state_dict().items()}
    sent = {name: value - 0.01 for name, value in before.items()}
    write_capture(place / "captures", Capture(round=1, client="7", before=before, sent=sent, examples=1))
    with pytest.raises(InputError, match="--model"):
        run("captures", *BRIEF)
    code, text = run("captures", "--model", "cli_audited:blind", *BRIEF, "--out", "out")
    assert code == 0
    assert "unscored" in text
    assert (place / "out" / "guesses.safetensors").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing.yaml"], "cannot read .*nothing.yaml"),
        (["nowhere:build"], "cannot be imported"),
        (["cli_audited:build", "--fail-above", "x=1"], "--fail-above"),
        (["cli_audited:build", "--fail-above", ""], "--fail-above is empty"),
        (["cli_audited:build", "--fail-above", "  "], "--fail-above is empty"),
        (["cli_audited:build", "--fail-above", "psnr=18,asr=5"], r"--fail-above: asr .* 0\.\.1, got 5"),
        (["cli_audited:build", "--fail-above", "ssim=-0.1"], r"--fail-above: ssim .* 0\.\.1, got -0\.1"),
        (["cli_audited:build", "--fail-above", "labels=1.01"], r"--fail-above: labels .* 0\.\.1"),
        (["cli_audited:build", "--minutes", "0"], "minutes must be"),
        (["cli_audited:build", "--examples", "99"], "examples must lie"),
        (["cli_audited:build", "--model", "a:b"], "--model is for"),
    ],
)
def test_a_mistake_is_one_clear_line(words: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        run(*words)
    assert len(str(refused.value).splitlines()) == 1


def test_an_audit_is_never_written_through_a_link(tmp_path: Path) -> None:
    victim, out = tmp_path / "victim.json", tmp_path / "out"
    victim.write_text("mine")
    out.mkdir()
    (out / "audit.json").symlink_to(victim)
    with pytest.raises(InputError):
        write_audit(Audit(name="m", grade=Grade.UNTESTED, minutes=1.0, seconds=0.0, seed=0), out)
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("to", ["csv", "latex", "markdown"])
def test_the_table_of_an_audit_can_be_pasted(place: Path, to: str) -> None:
    run("cli_audited:build", *BRIEF, "--out", "out")
    told = json.loads((place / "out" / "audit.json").read_text())
    done = CliRunner().invoke(app, ["show", "out", "--to", to, "--out", "table"])
    assert done.exit_code == 0, done.output
    text = (place / "table").read_text("utf-8")
    runs = [*told["attacks"], *told["null_baselines"]]
    assert len(runs) > 3
    if to != "csv":
        assert text.count("content recovered") == 1
        assert all(f"{each['n']} " in text for each in runs)
        return
    rows = list(csv.DictReader(io.StringIO(text)))
    for row, each in zip(rows, runs, strict=True):
        assert row["attack"].removesuffix(" (without the update)") == each["name"]
        assert float(row["content recovered"]) == each["recovered"]
        assert float(row["content recovered low"]) <= each["recovered"] <= float(row["content recovered high"])
        assert float(row["PSNR, dB"]) == each["psnr"]


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"attacks": 1, "null_baselines": []}', '{"attacks": [{}], "null_baselines": []}']
)
def test_a_damaged_audit_is_one_clear_line(place: Path, content: str) -> None:
    (place / "out").mkdir()
    (place / "out" / "audit.json").write_text(content)
    done = CliRunner().invoke(app, ["show", "out"])
    assert isinstance(done.exception, InputError)
    assert len(str(done.exception).splitlines()) == 1


def test_an_interrupt_still_writes_the_page_and_ends_with_130(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(target_audit, "null_runs", interrupt)
    code, text = run("cli_audited:build", *BRIEF, "--out", "out", "--fail-above", "asr=1")
    assert code == 130
    assert "gate failed" in text
    told = json.loads((place / "out" / "audit.json").read_text())
    assert (told["grade"], told["interrupted"]) == ("inconclusive", True)
    assert [attack["name"] for attack in told["attacks"]]
    assert (place / "out" / "index.html").stat().st_size > 1000


def test_inspect_takes_a_name_a_function_and_a_file(place: Path) -> None:
    (place / "audit.yaml").write_text("build: cli_audited:build\nexamples: 4\n")
    for arguments, name, batch in (
        (["lenet_cpl", "--input-shape", "3x32x32", "--batch", "8"], "Sequential", 8),
        (["cli_audited:build"], "Sequential", 1),
        (["cli_audited:blind", "--batch", "2"], "Sequential", 2),
        (["cli_audited:tokens"], "Embedding", 1),
        (["audit.yaml"], "Sequential", 4),
    ):
        done = CliRunner().invoke(app, ["inspect", *arguments, "--json"])
        assert done.exit_code == 0, done.output
        record = json.loads(done.output)
        assert (record["model"], record["batch"], len(record["lines"])) == (name, batch, len(Topic))
        assert CliRunner().invoke(app, ["inspect", *arguments]).exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["resnet81", "--input-shape", "3x32x32"],
        ["lenet_cpl"],
        ["lenet_cpl", "--input-shape", "3x"],
        ["lenet_cpl", "--input-shape", "784"],
        ["cli_audited:build", "--batch", "0"],
        ["cli_audited:nothing"],
        ["."],
    ],
)
def test_inspect_refuses_a_mistake_in_one_line(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, ["inspect", *arguments])
    assert isinstance(done.exception, InputError)
    assert len(str(done.exception).splitlines()) == 1


def test_inspect_names_an_unknown_model_before_it_asks_for_a_shape() -> None:
    done = CliRunner().invoke(app, ["inspect", "resnet81"])
    assert isinstance(done.exception, UnknownNameError)
    assert "resnet18" in str(done.exception)


def test_show_prints_the_static_lines_of_an_audit() -> None:
    run("cli_audited:build", *BRIEF, "--attack", "analytic", "--out", "out")
    shown = CliRunner().invoke(app, ["show", "out"]).output
    static = json.loads(Path("out/audit.json").read_text())["static"]
    assert [line["topic"] for line in static["lines"] if line["topic"] in shown] == [
        line["topic"] for line in static["lines"]
    ]
    record = json.loads(Path("out/audit.json").read_text())
    del record["static"]  # a record of an earlier revision
    Path("out/audit.json").write_text(json.dumps(record))
    assert CliRunner().invoke(app, ["show", "out"]).exit_code == 0
