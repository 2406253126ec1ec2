"""`python -m leakscope_papers`, the same as `leakscope paper` without an installed command."""

from leakscope.cli.app import run_command
from leakscope_papers.cli import paper

run_command(paper)
