"""The command line: one file for each family of commands."""

from leakscope.cli import audit, characteristic, demo, frontier, pieces, policy, results, search, sweep, train
from leakscope.cli.app import app, main
from leakscope.cli.plugins import join_commands

join_commands(app)

__all__ = [
    "app",
    "audit",
    "characteristic",
    "demo",
    "frontier",
    "main",
    "pieces",
    "policy",
    "results",
    "search",
    "sweep",
    "train",
]
