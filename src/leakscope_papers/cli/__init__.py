"""`leakscope paper`: the tables and figures of papers as experiments."""

import typer

paper = typer.Typer(
    help="Measure the tables and figures of papers and compare them with the published numbers.", no_args_is_help=True
)

# After `paper`: these imports load the command line, which imports `paper` from here.
from leakscope_papers.cli.results import record, render, report, status  # noqa: E402
from leakscope_papers.cli.run import list_items, run  # noqa: E402

paper.command("list")(list_items)
for command in (run, report, record, render, status):
    paper.command()(command)
