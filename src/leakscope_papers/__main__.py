"""`python -m leakscope_papers` is `leakscope paper` where nothing is installed."""

from leakscope.cli.app import run_command
from leakscope_papers.cli import paper

run_command(paper)
