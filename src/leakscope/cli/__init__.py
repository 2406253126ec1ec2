"""The command line: one file per family of commands."""

from leakscope.cli import audit, catalogue, pages, results, run, scan, search, studies, train
from leakscope.cli.app import app, join_commands, main

join_commands(app)

__all__ = ["app", "audit", "catalogue", "main", "pages", "results", "run", "scan", "search", "studies", "train"]
