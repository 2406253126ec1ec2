"""The HTML page of results, one self-contained file: `page_of_run` maps a stored run to a `Page`, `write` renders it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakscope.core.lazy import load_lazily

if TYPE_CHECKING:
    from leakscope.report.audit_page import page_of_audit as page_of_audit
    from leakscope.report.figures import Figure as Figure, figures_of as figures_of, write_figure as write_figure
    from leakscope.report.page import fragment as fragment, render as render, write as write
    from leakscope.report.page_data import Download as Download, Exact as Exact, Fading as Fading, Gallery as Gallery
    from leakscope.report.page_data import Guess as Guess, Level as Level, Page as Page, Pair as Pair
    from leakscope.report.page_data import Provenance as Provenance, Section as Section, Strength as Strength
    from leakscope.report.page_data import Threat as Threat, Tile as Tile
    from leakscope.report.run_page import page_of_run as page_of_run
    from leakscope.report.sheet import Sheet as Sheet, make_sheet as make_sheet, sheet_of as sheet_of
    from leakscope.report.tables import Row as Row, Table as Table, cell_table as cell_table, tabulate as tabulate
else:
    load_lazily(__name__)
