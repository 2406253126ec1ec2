"""The page: one HTML text that needs nothing but itself, from a `Page` of plain data.

Everything from the data goes through jinja2's escaping. The page forbids itself the network (a content security policy
that allows inline pictures and this one script, by its hash), so a mistake here cannot make it call anywhere.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from leakscope.report import numbers
from leakscope.report.page_layout import stage
from leakscope.report.picture import data_uri
from leakscope.report.sheet import say
from leakscope.report.tables import learned_in

if TYPE_CHECKING:
    from jinja2 import Environment

    from leakscope.report.page_data import Page
    from leakscope.report.tables import Row

TEMPLATES = Path(__file__).parent / "templates"
STYLES = ("base.css", "tables.css", "pictures.css", "viewer.css", "narrow.css")
SCRIPTS = ("page.js", "theme.js", "gallery.js", "films.js", "trace.js", "viewer.js", "strength.js", "download.js")
OUTCOMES = frozenset({"converged", "exhausted", "stalled", "diverged"})  # those that have a colour
FRAGMENT_HEIGHT = 720


def render(page: Page) -> str:
    """Return the page as one self-contained HTML text."""
    from markupsafe import Markup

    script = "(() => {\n" + read_assets(SCRIPTS) + "})();\n"
    set_up = stage(page)
    download = page.download.text if page.download else ""
    return (
        environment_of()
        .get_template("page.html")
        .render(
            page=page,
            style=Markup(read_assets(STYLES)),
            script=Markup(script),
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
            rules=Markup("\n".join(set_up.rules)),
            staged=set_up,
            csv=base64.b64encode(gzip.compress(download.encode(), mtime=0)).decode("ascii") if download else "",
        )
    )


def write(page: Page, path: str | Path) -> Path:
    """Write the page to `path` and return it; missing folders are made."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(page), encoding="utf-8")
    return path


def fragment(page: Page) -> str:
    """Return the page for a notebook's output cell (`_repr_html_`): an iframe that holds all of it.

    An iframe because nothing else is robust there: styles and ids cannot clash with the notebook's or with those of a
    second cell, and scripts run although notebooks do not run those of inserted HTML. It is sandboxed: the page may
    run its script and hand over a download, but not touch the notebook.
    """
    title, source = html.escape(page.title, quote=True), html.escape(render(page), quote=True)
    style = f"width:100%;height:{FRAGMENT_HEIGHT}px;border:1px solid #8886;border-radius:6px"
    return (
        f'<iframe title="{title}" sandbox="allow-scripts allow-downloads" style="{style}" srcdoc="{source}"></iframe>'
    )


def by_attack(rows: Sequence[Row], apart: bool) -> list[tuple[str, list[Row]]]:
    """Return the rows in groups under the attack's name, if `apart`; baselines are a group without one."""
    groups: dict[tuple[bool, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.baseline, row.attack if apart and not row.baseline else ""), []).append(row)
    return [(name, own) for (_, name), own in groups.items()]


def read_assets(names: tuple[str, ...], *more: Path) -> str:
    """Return the styles or scripts of these names as one text; `more` are folders beside our templates."""
    folders = (TEMPLATES, *more)
    return "".join(next(f / name for f in folders if (f / name).is_file()).read_text("utf-8") for name in names)


def environment_of(*more: Path) -> Environment:
    """Return the environment of our templates and those in `more` folders."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([TEMPLATES, *more]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": numbers.percent,
        "percent_interval": numbers.percent_interval,
        "number": numbers.number,
        "number_interval": numbers.number_interval,
        "decibels": numbers.decibels,
        "say": say,
        "by_attack": by_attack,
        "learned": learned_in,
        "data_uri": data_uri,
    }
    environment.globals["outcomes"] = OUTCOMES
    return environment
