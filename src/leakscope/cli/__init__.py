"""The command line: one file for each family of commands."""

from leakscope.cli import audit, characteristic, demo, frontier, papers, pieces, policy, results, search, sweep, train
from leakscope.cli.app import app, main

__all__ = [
    "app",
    "audit",
    "characteristic",
    "demo",
    "frontier",
    "main",
    "papers",
    "pieces",
    "policy",
    "results",
    "search",
    "sweep",
    "train",
]
