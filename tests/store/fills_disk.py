"""A program to run on a small disk: `python fills_disk.py DISK ELSEWHERE` fills it, tries everything, and prints what was said.

Each line is JSON: `[what was done, the error's type, what it said, chunks stored, what is wrong with the run]`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from conftest import FACTS, SCENARIO, content, fill, make_cell, make_landing
from leakscope.core.errors import InputError
from leakscope.store import Run, Writer, export

BALLAST = "ballast"


def tell(what: str, run: Run, action: Callable[[], object]) -> None:
    """Print how an action ended, and whether the run can still be read and holds whole chunks alone."""
    kind, said, wrong = "none", "", []
    try:
        action()
    except Exception as error:
        kind, said = type(error).__name__, str(error)
    try:
        stored = len(Run.open(run.directory).chunks())
        pictures = [path.name for path in (run.directory / "tensors").iterdir()]
        wrong += [name for name in pictures if not name.endswith(".safetensors")]
        wrong += ["files"] * (len(pictures) != sum(chunk["size"] is not None for chunk in run.chunks()))
        wrong += ["records"] * (len(run.done()) != 3 * stored)
    except InputError as error:
        stored, wrong = -1, [str(error)]
    print(json.dumps([what, kind, said, stored, wrong]), flush=True)  # noqa: T201


def fill_up(disk: Path) -> None:
    """Take every last byte of a disk."""
    with (disk / BALLAST).open("ab", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass


def land_until_full(writer: Writer, start: int, *, bare: bool) -> None:
    for k in range(start, 5000):
        landing = make_landing(k, 1, pixels=4096)
        writer.land(replace(landing, tensors={}) if bare else landing)


def main() -> None:
    disk, elsewhere = Path(sys.argv[1]), Path(sys.argv[2])
    (disk / BALLAST).write_bytes(bytes(500_000))
    run = Run.create(disk / "run", SCENARIO, FACTS)
    cells = [make_cell(i) for i in range(4)]
    with run.writing() as writer:
        fill(writer, range(1), pixels=4096)
        tell("pictures", run, lambda: land_until_full(writer, 1, bare=False))
        full = len(run.chunks())
        fill_up(disk)
        tell("records", run, lambda: land_until_full(writer, full, bare=True))
        tell("renew", run, lambda: writer.renew(SCENARIO + " " * 20_000, cells, FACTS))
        tell("plan", run, lambda: writer.add_plan({"x": "y" * 20_000}))
        tell("export", run, lambda: export(run, "csv", disk / "out.csv"))
        tell("create", run, lambda: Run.create(disk / "another", SCENARIO, FACTS))
    fill_up(disk)
    tell("closed", run, lambda: None)
    tell("open to write", run, lambda: run.writing().__enter__())
    os.unlink(disk / BALLAST)
    rest = range(full, full + 2)
    with run.writing() as writer:
        tell("freed", run, lambda: fill(writer, rest, pixels=64))
    undisturbed = Run.create(elsewhere / "run", SCENARIO, FACTS)
    with undisturbed.writing() as writer:
        fill(writer, range(full), pixels=4096)
        fill(writer, rest, pixels=64)
    print(json.dumps(content(run) == content(undisturbed)), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
