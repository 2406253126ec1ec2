"""The page of a result that Python code holds (an audit, a run, a frontier, ...). `leakscope.core.pages` finds this module by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from leakscope.auditing.result import Audit
from leakscope.core.threat_models import in_letters, threat_model_of
from leakscope.play import Demonstration
from leakscope.play.dishonest import ManipulationResult
from leakscope.report.attack_page import page_of
from leakscope.report.audit_page import page_of_audit
from leakscope.report.frontier_page import page_of_frontier
from leakscope.report.page import fragment, render, write_page
from leakscope.report.page_data import DISHONEST, Page
from leakscope.report.serving import page_of_directory
from leakscope.store import Run
from leakscope.studies.frontier import Frontier

UNMANIPULATED = (
    "Only this manipulation was tested, on this sample. A client that scans the model before it trains may notice it. An example "
    "that was not recovered may not be safe."
)


def page_of_result(result: object) -> Page:
    """Return the page of a result; other values are an error."""
    if isinstance(result, Audit):
        return page_of_audit(result, command="leakscope.audit(model, loss, inputs, labels)")
    if isinstance(result, Run):
        return page_of_directory(result.directory, command=f"leakscope.Run.open({str(result.directory)!r})")
    if isinstance(result, Frontier):
        return page_of_frontier(result, command="leakscope.studies.frontier.measure_frontier(settings)")
    if isinstance(result, ManipulationResult):
        return page_of_manipulation(result)
    raise TypeError(f"there is no page of a {type(result).__name__}")


def page_of_manipulation(result: ManipulationResult) -> Page:
    """Return the page of what a dishonest server read: private images above its readout, beside the null baselines."""
    batch, name = result.exposure.batch, result.attack.name
    places = tuple(f"client {t}, example {s}" for t in range(batch.trials) for s in range(batch.samples))
    runs, nulls = (result.attack,), tuple(result.baselines.values())
    page = page_of(
        Demonstration(result.exposure, places, runs, result.attack.seconds, baselines=nulls),
        title="leakscope manipulate",
        explanation=f"The server sent weights that were manipulated by {name} and read the updates of the clients.",
        knowledge="The network, the weights that it sent, the loss, the batch size and public examples.",
        limits=UNMANIPULATED,
        command="leakscope.manipulate(model, batch, manipulation, public, public_labels)",
    )
    letters = in_letters(
        {threat_model_of(local=result.exposure.knowledge.local is not None, public=True, manipulates=True)}
    )
    return replace(page, threat=replace(page.threat, server=DISHONEST, words=f"{page.threat.words} {letters}"))


def write_result(result: object, path: Path) -> Path:
    """Write the page of a result to a plain file and return its path."""
    return write_page(render(page_of_result(result)), path, plain=True)


def fragment_of(result: object) -> str:
    """Return the page of a result as a sandboxed frame."""
    return fragment(page_of_result(result))
