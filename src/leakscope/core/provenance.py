"""Provenance of results, stored with every run: versions, revision, machine."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import torch

from leakscope.core.version import __version__


def gather_facts(command: str, device: str) -> dict[str, str]:
    """Return the current versions, revision and machine as plain text."""
    facts = {
        "leakscope": __version__,
        "revision": revision(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "device": torch.cuda.get_device_name() if device.startswith("cuda") and torch.cuda.is_available() else device,
        "command": command,
    }
    return {name: value for name, value in facts.items() if value}


def revision() -> str:
    """Return the git revision of a source checkout, with '+' if files differ from it; empty for an installed package."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return ""
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()
