"""The registered papers, and the folders of their items and printed numbers.

A paper is a package with two folders: `items` (what is run) and `published` (what is printed). Other distributions add papers
through the entry point group `leakscope.papers`: the name is the paper's, the value its package.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
from importlib.metadata import entry_points
from pathlib import Path

from leakscope.core.errors import InputError

OURS = ("cpl", "mixing", "sme", "spn", "ats")
GROUP = "leakscope.papers"
NAME = re.compile(r"[a-z][a-z0-9]*")


@functools.cache
def papers() -> dict[str, Path]:
    """Return paper -> folder, installed packages after ours; one that is missing or reuses a name is reported on stderr and skipped."""
    folder = Path(__file__).parent
    folders = {name: folder / name for name in OURS}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            if not NAME.fullmatch(point.name) or point.name in folders:
                raise InputError("its name must be a new one of small letters and digits")
            folders[point.name] = _folder(point.value)
        except Exception as error:  # finding another package's folder may fail in any way
            sys.stderr.write(f"leakscope: paper {point.name!r} of {point.value} is left out ({error})\n")
    return folders


def paper_files(kind: str) -> dict[str, Path]:
    """Return item -> file of every `items` or `published` file, such as `cpl-table-2`."""
    return {f"{paper}-{path.stem}": path for paper, home in papers().items() for path in (home / kind).glob("*.yaml")}


def _folder(package: str) -> Path:
    """Return the folder of an installed package without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"{package!r} is no package")
    return Path(next(iter(spec.submodule_search_locations)))
