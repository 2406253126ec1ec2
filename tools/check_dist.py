"""Check what `python -m build` wrote: the files of wheel and sdist, then the wheel itself in a clean environment outside the tree.

The wheel holds every tracked file of src and nothing else; the sdist holds every tracked file, tests included. Usage: `make dist`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
GENERATED = ("PKG-INFO", "setup.cfg")
NEEDED = (
    "leakscope/py.typed",
    "leakscope/report/templates/page.html",
    "leakscope/data/bundled/digits.npz",
    "leakscope/data/bundled/digits.LICENSE.txt",
    "leakscope/scanning/reference.json",
    "leakscope_papers/pages/templates/paper.html",
)
PEEK = """
import pathlib, sys, torch, leakscope
assert pathlib.Path(leakscope.__file__).is_relative_to(sys.prefix), leakscope.__file__
network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
data = leakscope.load("digits")
print(leakscope.peek(network, data.pictures("test", slice(1)), torch.as_tensor(data.labels("test", slice(1))), iterations=2))
"""


def tracked() -> set[str]:
    """Return the files that git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return {name for name in listed.split("\0") if name}


def check_wheel(path: Path) -> None:
    """Stop unless the wheel holds the packages of src, with templates, data and licences, and nothing else."""
    names = set(zipfile.ZipFile(path).namelist())
    info = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    sources = {name.removeprefix("src/") for name in tracked() if name.startswith("src/")}
    compare(path, names - info, sources)
    licences = {name.rpartition("/licenses/")[2] for name in info if "/licenses/" in name}
    wanted = {"LICENSE", *(name for name in tracked() if name.endswith(".LICENSE.txt"))}
    compare(path, licences, wanted)
    if missing := sorted(set(NEEDED) - names):
        sys.exit(f"{path.name} lacks {missing[0]}")


def check_sdist(path: Path) -> None:
    """Stop unless the sdist holds every tracked file and nothing that git does not track."""
    with tarfile.open(path) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    written = {name for name in names if name in GENERATED or ".egg-info/" in name}
    compare(path, names - written, tracked())


def compare(path: Path, names: set[str], wanted: set[str]) -> None:
    """Stop at the first file that is missing or too many."""
    for what, which in (("lacks", wanted - names), ("should not hold", names - wanted)):
        if which:
            sys.exit(f"{path.name} {what} {min(which)} ({len(which)} files in all)")


def try_wheel(path: Path) -> None:
    """Stop unless the wheel installs and runs in a new environment, from a directory outside the tree."""
    with tempfile.TemporaryDirectory() as folder:
        bin_ = Path(folder, "venv", "bin")
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}

        def call(*command: str | Path) -> None:
            print("$", *(str(part).replace(folder, "").strip() for part in command), flush=True)
            done = subprocess.run(
                command,
                check=False,
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            if done.returncode:
                sys.exit(f"{done.stdout[-3000:]}\nended with code {done.returncode}")

        call(sys.executable, "-m", "venv", "venv")
        call(bin_ / "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check", path)
        call(bin_ / "pip", "check")
        call(bin_ / "leakscope", "--help")
        call(bin_ / "leakscope", "list")
        call(bin_ / "leakscope", "paper", "list")
        call(bin_ / "python", "-c", PEEK)


def main(directory: Path) -> None:
    """Check the one wheel and the one sdist of a directory."""
    (wheel,), (sdist,) = directory.glob("*.whl"), directory.glob("*.tar.gz")
    check_wheel(wheel)
    check_sdist(sdist)
    try_wheel(wheel)
    print(f"{wheel.name} and {sdist.name} hold what they should, and the wheel runs in a clean environment")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
