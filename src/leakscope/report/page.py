"""Self-contained HTML pages from templates: jinja2 escapes all data, a content security policy forbids the network."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from leakscope.report import numbers
from leakscope.report.cells import axis_value_text
from leakscope.report.pictures import data_uri
from leakscope.report.tables import have_images, learned_in
from leakscope.store.disk import replacing, writing_to

if TYPE_CHECKING:
    from jinja2 import Environment

    from leakscope.report.page_data import Page
    from leakscope.report.tables import Row

TEMPLATES = Path(__file__).parent / "templates"
STYLES = ("base.css", "tables.css", "pictures.css", "viewer.css", "narrow.css")
SCRIPTS = ("page.js", "theme.js", "gallery.js", "films.js", "trace.js", "viewer.js", "strength.js", "download.js")
OUTCOMES = frozenset({"converged", "exhausted", "stalled", "diverged"})  # outcomes with a colour
FRAGMENT_HEIGHT = 720


def render_page(
    template: str,  # extends base.html
    values: Mapping[str, object],  # of the template and of base.html; `data` is for the scripts
    *,
    styles: Sequence[str],
    scripts: Sequence[str] = (),
    folder: Path | None = None,  # more templates and styles
) -> str:
    """Return a page as one self-contained HTML text."""
    from markupsafe import Markup

    folders = [TEMPLATES, *([folder] if folder else [])]
    script = "(() => {\n" + _read_assets(scripts, folders) + "})();\n" if scripts else ""
    shared = {
        "style": Markup(_read_assets(styles, folders)),
        "script": Markup(script),
        "script_hash": sha256_source(script),  # the policy allows this script only
        "data": {},
    }
    return render_template(template, shared | dict(values), folders)


def render_template(template: str, values: Mapping[str, object], folders: Sequence[Path] = (TEMPLATES,)) -> str:
    """Return a filled template; all values are escaped."""
    return _environment(folders).get_template(template).render(values)


def write_page(text: str, path: str | Path, *, plain: bool = False) -> Path:
    """Write a page atomically to `path` (see `writing_to`; a plain file if `plain`) and return it; missing folders are created."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with (replacing if plain else writing_to)(path) as file:
        file.write(text.encode())
    return path


def sha256_source(text: str) -> str:
    """Return the hash by which a content security policy allows an inline script or style."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def render(page: Page) -> str:
    """Return the page of attacks as one self-contained HTML text."""
    from markupsafe import Markup

    from leakscope.report.layout import lay_out

    layout = lay_out(page)
    download = page.download.text if page.download else ""
    values = {
        "title": page.title,
        "headline": page.headline,
        "explanation": page.explanation,
        "limits": page.limits,
        "command": page.provenance.command,
        "facts": page.provenance.facts,
        "page": page,
        "layout": layout,
        "rules": Markup("\n".join(layout.rules)),
        "csv": base64.b64encode(gzip.compress(download.encode(), mtime=0)).decode("ascii") if download else "",
        "data": layout.data,
    }
    return render_page("page.html", values, styles=STYLES, scripts=SCRIPTS)


def write(page: Page, path: str | Path) -> Path:
    """Write the page of attacks to `path` and return it; missing folders are created."""
    return write_page(render(page), path)


def fragment(page: Page) -> str:
    """Return the page as a sandboxed iframe for a notebook cell: scripts run, and styles cannot clash with the notebook's."""
    title, source = html.escape(page.title, quote=True), html.escape(render(page), quote=True)
    style = f"width:100%;height:{FRAGMENT_HEIGHT}px;border:1px solid #8886;border-radius:6px"
    return (
        f'<iframe title="{title}" sandbox="allow-scripts allow-downloads" style="{style}" srcdoc="{source}"></iframe>'
    )


def by_attack(rows: Sequence[Row], apart: bool) -> list[tuple[str, list[Row]]]:
    """Return the rows grouped by attack if `apart`; baselines are a group without a name."""
    groups: dict[tuple[bool, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.baseline, row.attack if apart and not row.baseline else ""), []).append(row)
    return [(name, members) for (_, name), members in groups.items()]


def _read_assets(names: Sequence[str], folders: Sequence[Path]) -> str:
    """Return the named styles or scripts as one text."""
    return "".join(next(f / name for f in folders if (f / name).is_file()).read_text("utf-8") for name in names)


def _environment(folders: Sequence[Path]) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(folders),
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
        "short": numbers.short,
        "decibels": numbers.decibels,
        "axis_value": axis_value_text,
        "by_attack": by_attack,
        "learned": learned_in,
        "images": have_images,
        "data_uri": data_uri,
    }
    environment.globals["outcomes"] = OUTCOMES
    return environment
