"""Write docs/reference/cli.md and docs/reference/api.md from the code.

python tools/reference.py            # write them
python tools/reference.py --check    # exit 1 if a file is not what would be written
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import typer

import leakscope
from leakscope.cli import app

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "reference"
WRITTEN = "Written by `tools/reference.py` from the code; do not edit it by hand."
ROOMS = ("attacks", "defences", "servers", "metrics", "data", "models")
REST = "More"
GROUPS = {
    "Audit": ("audit", "inspect", "peek", "audit_captures", "Audit", "Inspection", "Target", "capture", "Recording", "scan", "Scan"),
    "Sweeps": ("scenario_of", "run_scenario", "engines", "Run"),
    "Data and models": ("load", "make_batch", "build", "from_module", "draw_parameters", "Uniform", "key", "random", "tree"),
    "Clients and what the attacker knows": (
        "Client", "LocalTraining", "PrivateClient", "attacker_knowledge", "knowledge_of_defences",
    ),
    "Defences": (
        "GaussianNoise", "LaplaceNoise", "Clip", "Sparsify", "DeepCompression", "RandomMask", "ChosenNoise", "Sign", "Quantise",
        "LowRank", "Transform", "Polarisation",
    ),
    "Attacks": ("analytic", "dlg", "idlg", "cpl", "ig", "sme", "dlfa", "aware", "Execution"),
    "Scores": ("score", "summarise", "Scores", "Summary", "baselines", "public_part"),
    "Values": ("Batch", "Observation", "Knowledge", "Reconstruction", "Shares", "Outcome", "direction"),
    "A dishonest server": ("manipulate", "ManipulationResult"),
    "Components of your own": ("register_attack", "register_defence", "register_data", "register_model", "register_metric"),
    "Errors": ("InputError", "ScenarioError"),
}  # fmt: skip
API_HEAD = f"""\
# Python API

{WRITTEN}
The names below are imported from `leakscope` and are stable: a release that changes one says so in the
[changelog](../../CHANGELOG.md). The package is typed. `import leakscope` loads nothing heavy; each name loads what it needs on first
use. [Python in ten minutes](../start/python.md) uses them in order.
"""
ROOMS_HEAD = """\
## Components

What attacks, clients and metrics are made of. Further subjects are modules of the same package:
`from leakscope import analysis, federated, inference, learning, report, search, store`.
"""
CLI_HEAD = f"""\
# Command line

{WRITTEN}
`leakscope COMMAND --help` prints the same. Exit codes: 0 done; 1 a gate failed or a training diverged; 2 a mistake in the
input, with one line for each on stderr; 130 stopped by Ctrl-C.
"""


def first_line(value: object) -> str:
    """Return the first paragraph of a docstring as one line."""
    return " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())


def plain(default: object) -> str:
    """Return a default as a reader would write it."""
    if isinstance(default, enum.Enum):
        return f"{type(default).__name__}.{default.name}"
    if dataclasses.is_dataclass(default) and not isinstance(default, type):
        return f"{type(default).__name__}({'...' if dataclasses.fields(default) else ''})"
    if inspect.isfunction(default) and default.__name__ != "<lambda>":
        return default.__name__
    return "..." if repr(default).startswith("<") else repr(default)


def written(annotation: object) -> str:
    """Return an annotation as it stands in the code."""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def signature(name: str, value: Any) -> str:
    """Return a call with its arguments, one a line where it is long."""
    if isinstance(value, type) and issubclass(value, BaseException):
        return ""
    if isinstance(value, type) and issubclass(value, enum.Enum):
        return "\n".join(f"{name}.{member.name}" for member in value)
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    parts, starred = [], False
    for argument in found.parameters.values():
        if argument.kind is argument.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        kind = "" if argument.annotation is argument.empty else f": {written(argument.annotation)}"
        default = "" if argument.default is argument.empty else f" = {plain(argument.default)}"
        parts.append(f"{argument.name}{kind}{default}")
    returned = found.return_annotation
    arrow = "" if isinstance(value, type) or returned in (found.empty, None) else f" -> {written(returned)}"
    line = f"{name}({', '.join(parts)}){arrow}"
    return line if len(line) <= 100 else "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){arrow}"])


def described(name: str, value: object) -> Iterator[str]:
    """Yield the lines about one stable name."""
    yield from (f"### {name}", "", first_line(value), "")
    shown = "" if isinstance(value, ModuleType) else signature(name, value)
    if shown:
        yield from ("```text", shown, "```", "")


def api_page() -> str:
    """Return the page of the stable names and the exports of the rooms."""
    rest = tuple(sorted(set(leakscope.__all__) - {name for names in GROUPS.values() for name in names}))
    lines = [API_HEAD]
    for title, names in {**GROUPS, **({REST: rest} if rest else {})}.items():
        lines += [f"## {title}", ""]
        for name in names:
            lines += described(name, getattr(leakscope, name))
    lines.append(ROOMS_HEAD)
    for room in ROOMS:
        package = importlib.import_module(f"leakscope.{room}")
        names = sorted(name for name in dir(package) if not name.startswith("_"))
        values = ((name, getattr(package, name)) for name in names)
        rows = [(name, value) for name, value in values if not isinstance(value, ModuleType) and name != "annotations"]
        lines += [f"### leakscope.{room}", "", "| name | is |", "|---|---|"]
        lines += [f"| `{name}` | {cell(_about(value))} |" for name, value in rows]
        lines.append("")
    return "\n".join(lines)


def _about(value: object) -> str:
    """Return what an exported value is: its docstring, or the names in a table."""
    if isinstance(value, dict):
        return f"table: {', '.join(f'`{key}`' for key in value)}"
    return first_line(value) if callable(value) else f"`{plain(value)}`"


def cell(text: str) -> str:
    """Return a text that stands in a cell of a Markdown table."""
    return text.replace("|", "\\|")


def cli_page() -> str:
    """Return the page of all commands."""
    root = typer.main.get_command(app)
    lines = [CLI_HEAD]
    for path, command in _commands(root, ("leakscope",)):
        lines += _command(" ".join(path), command)
    return "\n".join(lines)


def _commands(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command below a group with its words."""
    for name, child in sorted(getattr(command, "commands", {}).items()):
        if hasattr(child, "commands"):
            yield from _commands(child, (*path, name))
        else:
            yield (*path, name), child


def _command(name: str, command: click.Command) -> Iterator[str]:
    """Yield the lines about one command."""
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    words = [str(a.name).upper() if a.required else f"[{str(a.name).upper()}]" for a in arguments]
    yield from (f"## {name}", "", " ".join((command.help or "").split()), "")
    yield from ("```text", " ".join([name, *words, *(["[OPTIONS]"] if options else [])]), "```", "")
    if arguments or options:
        yield from ("| option | meaning | default |", "|---|---|---|")
    for one in (*arguments, *options):
        spelled = str(one.name).upper() if one in arguments else ", ".join([*one.opts, *one.secondary_opts])
        yield f"| `{spelled}` | {cell(getattr(one, 'help', None) or '')} | {_default(one)} |"
    yield ""


def _default(option: click.Parameter) -> str:
    """Return the default of an option as it is written on the command line; nothing where there is none."""
    value = option.default
    if value is None or option.required or callable(value):
        return ""
    if isinstance(value, bool):
        spelled = option.opts[0] if value else next(iter(option.secondary_opts), None)
        return f"`{spelled}`" if spelled else ""
    return f"`{value}`"


def main() -> None:
    """Write the pages, or say whether they are up to date."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is not up to date")
    check = parser.parse_args().check
    for name, text in (("cli.md", cli_page()), ("api.md", api_page())):
        page = FOLDER / name
        if not check:
            page.write_text(text, encoding="utf-8")
            print(page.relative_to(ROOT))
        elif not page.exists() or page.read_text(encoding="utf-8") != text:
            sys.exit(f"docs/reference/{name} is not up to date: run python tools/reference.py")


if __name__ == "__main__":
    main()
