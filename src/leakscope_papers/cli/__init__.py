"""`leakscope paper`: the tables and figures of papers as experiments."""

import typer

from leakscope_papers.cli.results import record, render, report, status
from leakscope_papers.cli.run import list_items, run

paper = typer.Typer(
    help="The tables and figures of papers as experiments: published beside measured.", no_args_is_help=True
)
paper.command("list")(list_items)
for command in (run, report, record, render, status):
    paper.command()(command)
