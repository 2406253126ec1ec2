"""Compare the numbers of the working tree with those of another revision, bit for bit.

    python tools/same_bits.py REV                    # exit 1 if anything differs
    python tools/same_bits.py REV --only 'attack/*'  # a part of the set
    python tools/same_bits.py --list                 # the names of the cases

Guards a refactoring. REV is checked out into a temporary worktree; `tools/same_bits_set.py` of the working tree runs there
and here, one process and one thread each, on the CPU. A case that fails is a difference, also where it fails in both trees.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

ROOT = Path(__file__).parents[1]
SET = Path(__file__).with_name("same_bits_set.py")
MOST_LINES = 40  # differences that are printed of one case
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Side:
    """What one tree gave: its tensors, its cases, the traceback of each that failed, and its seconds."""

    tensors: Mapping[str, Tensor]
    cases: tuple[str, ...]
    failed: Mapping[str, str]
    seconds: float


@contextmanager
def worktree(revision: str) -> Iterator[Path]:
    """Give a checkout of the revision that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="same-bits-") as directory:
        tree = Path(directory) / "tree"
        add = ["git", "worktree", "add", "--quiet", "--detach", str(tree), revision]
        if subprocess.run(add, cwd=ROOT, check=False).returncode:
            raise SystemExit(f"same_bits: {revision!r} cannot be checked out")
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)


def start_set(tree: Path, place: Path, *words: str) -> subprocess.Popen[bytes]:
    """Return the running set of a tree."""
    place.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        **dict.fromkeys(THREADS, "1"),
        "PYTHONPATH": str(tree / "src"),
        "PYTHONWARNINGS": "ignore",
        "CUDA_VISIBLE_DEVICES": "",
    }
    return subprocess.Popen([sys.executable, str(SET), *words], cwd=place, env=environment)


def read_side(path: Path, tree: Path) -> Side:
    """Return what a set wrote; refuse numbers that came from another tree."""
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["about"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping
    if not Path(about["source"]).resolve().is_relative_to((tree / "src").resolve()):
        raise SystemExit(f"same_bits: the set imported {about['source']}, which is not in {tree}")
    return Side(tensors, tuple(about["cases"]), about["failed"], sum(about["seconds"].values()))


def run_sides(revision: str, only: str, scratch: Path) -> tuple[Side, Side]:
    """Return what the revision and the working tree gave; both run at the same time."""
    with worktree(revision) as tree:
        trees = {"before": tree, "after": ROOT}
        files = {name: scratch / name / "out.safetensors" for name in trees}
        running = {
            name: start_set(where, scratch / name, str(files[name]), "--only", only) for name, where in trees.items()
        }
        codes = {name: process.wait() for name, process in running.items()}
        if any(codes.values()):
            raise SystemExit(f"same_bits: the set could not be run: exit codes {codes}")
        before, after = (read_side(files[name], where) for name, where in trees.items())
    return before, after


def differences(before: Side, after: Side, case: str) -> list[str]:
    """Return one line for each tensor of a case that is not the same."""
    names = [name for name in {**before.tensors, **after.tensors} if name.startswith(f"{case}/") or name == case]
    lines = [difference(before.tensors.get(name), after.tensors.get(name)) for name in names]
    return [f"{name}: {line}" for name, line in zip(names, lines, strict=True) if line]


def difference(before: Tensor | None, after: Tensor | None) -> str:
    """Return how two tensors differ; nothing where all bits agree.

    >>> difference(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5]))
    'max abs difference 0.5, 1 of 2 numbers'
    """
    if before is None or after is None:
        return f"only {'after' if before is None else 'before'}"
    if before.dtype != after.dtype:
        return f"dtype {before.dtype}, now {after.dtype}"
    if before.dtype == torch.uint8 and before.ndim == 1 and not torch.equal(before, after):
        return f"{_text(before)}, now {_text(after)}"
    if before.shape != after.shape:
        return f"shape {tuple(before.shape)}, now {tuple(after.shape)}"
    if before.numpy().tobytes() == after.numpy().tobytes():
        return ""
    apart = (before.double() - after.double()).abs()
    other = (apart != 0) & ~(before.isnan() & after.isnan())
    return f"max abs difference {float(apart.nan_to_num(torch.inf).max()):.3g}, {int(other.sum())} of {apart.numel()} numbers"


def _text(value: Tensor) -> str:
    """Return bytes as the text they most likely are, cut where it is long."""
    return repr(bytes(value.tolist()).decode("utf-8", "replace")[:60])


def compare(before: Side, after: Side) -> bool:
    """Print what differs; return whether nothing does."""
    cases = dict.fromkeys((*before.cases, *after.cases))
    wrong = 0
    for case in cases:
        failed = [
            f"FAILED {name}:\n{side.failed[case]}"
            for name, side in (("before", before), ("after", after))
            if case in side.failed
        ]
        missing = [
            f"no such case {name}" for name, side in (("before", before), ("after", after)) if case not in side.cases
        ]
        lines = [*failed, *missing] or differences(before, after, case)
        wrong += bool(lines)
        if lines:
            more = len(lines) - MOST_LINES
            print(f"{case}: NOT the same", *lines[:MOST_LINES], *([f"and {more} more"] if more > 0 else []), sep="\n  ")
    seconds = f"{before.seconds:.0f} s before, {after.seconds:.0f} s after"
    if wrong or not cases:
        print(f"same_bits: {wrong} of {len(cases)} cases differ or fail ({seconds})")
        return False
    print(f"same_bits: all {len(after.tensors)} tensors of {len(cases)} cases agree ({seconds})")
    return True


def main(words: Sequence[str] | None = None) -> int:
    """Compare a revision with the working tree, or list the cases."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("revision", nargs="?", metavar="REV", help="what to compare the working tree with")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="cases whose name holds this, a glob")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    given = parser.parse_args(words)
    if not given.list and given.revision is None:
        parser.error("REV is missing")
    with tempfile.TemporaryDirectory(prefix="same-bits-") as scratch:
        if given.list:
            return start_set(ROOT, Path(scratch), "--list", "--only", given.only).wait()
        before, after = run_sides(given.revision, given.only, Path(scratch))
    return 0 if compare(before, after) else 1


if __name__ == "__main__":
    sys.exit(main())
