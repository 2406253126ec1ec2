"""The command line: one file for each family of commands."""

from leakscope.cli import demo, pieces, results, sweep
from leakscope.cli.app import app, main

__all__ = ["app", "demo", "main", "pieces", "results", "sweep"]
