"""The page of a result that Python code holds: an audit, a stored run, a frontier. `leakscope.core.pages` finds this module by name."""

from __future__ import annotations

from pathlib import Path

from leakscope.auditing.result import Audit
from leakscope.report.audit_page import page_of_audit
from leakscope.report.frontier_page import page_of_frontier
from leakscope.report.page import fragment, render, write_page
from leakscope.report.page_data import Page
from leakscope.report.serving import page_of_directory
from leakscope.store import Run
from leakscope.studies.frontier import Frontier


def page_of_result(result: object) -> Page:
    """Return the page of a result; other values are an error."""
    if isinstance(result, Audit):
        return page_of_audit(result, command="leakscope.audit(model, loss, inputs, labels)")
    if isinstance(result, Run):
        return page_of_directory(result.directory, command=f"leakscope.Run.open({str(result.directory)!r})")
    if isinstance(result, Frontier):
        return page_of_frontier(result, command="leakscope.studies.frontier.measure_frontier(settings)")
    raise TypeError(f"there is no page of a {type(result).__name__}")


def write_result(result: object, path: Path) -> Path:
    """Write the page of a result to a plain file and return its path."""
    return write_page(render(page_of_result(result)), path, plain=True)


def fragment_of(result: object) -> str:
    """Return the page of a result as a sandboxed frame."""
    return fragment(page_of_result(result))
