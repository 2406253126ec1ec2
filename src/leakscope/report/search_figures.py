"""The figures of a policy search: the scatter of its page, and every kept policy step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from leakscope.report.charts import Stroke
from leakscope.report.figures import WIDTH, Figure, Strip, by_name, image_strip, slug
from leakscope.report.pictures import drawable
from leakscope.report.search_page import draw_policies, privacy_name

if TYPE_CHECKING:
    from leakscope.search.policies import Walk
    from leakscope.search.records import SearchResult
    from leakscope.search.settings import PolicySearch


def figures_of_search(
    settings: PolicySearch, results: Mapping[str, SearchResult], walks: Sequence[Walk] = ()
) -> dict[str, Figure]:
    """Return the scatter of a search's page and the steps of each kept policy as figures, by name."""
    drawing = replace(
        draw_policies(results, threshold=settings.threshold),
        across_name=privacy_name(settings),
        threshold_value=settings.threshold,
    )
    legend = tuple(Stroke(c.name, c.colour, c.symbol, False, c.front, (), ()) for c in drawing.clouds)
    notes = "outlined: kept; pale: under the threshold; dotted: none beats these on both scores; diamond: no policy"
    scatter = Figure("policies", drawing.words, legend=legend, strips=(Strip(notes, (), (WIDTH, 0)),), scatter=drawing)
    steps = (
        Figure(
            slug(f"policy {walk.policy}"),
            f"policy {walk.policy}, step by step",
            strips=tuple(
                image_strip(words, [drawable(picture.float() / 255) for picture in step])
                for words, step in zip(("private pictures", *walk.words), walk.steps, strict=True)
            ),
        )
        for walk in walks
    )
    return by_name((scatter, *steps))
