"""A hook of MkDocs: files of the repository that a page links to become part of the site.

The pages link to code and results by relative paths, as a forge wants them. MkDocs knows docs/ alone, so each such file is added
to the site below `repository/`, and the links are rewritten. A link to a folder leads to its README; one to a folder without a
README becomes plain text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#]+)((?:#[^)\s]*)?)\)")
BESIDE = "repository/"


def source_of(uri: str) -> str:
    """Return the path in the repository of a page of the site.

    >>> source_of("start/install.md"), source_of("repository/CHANGELOG.md")
    ('docs/start/install.md', 'CHANGELOG.md')
    """
    return uri.removeprefix(BESIDE) if uri.startswith(BESIDE) else f"docs/{uri}"


def target_of(source: str, link: str) -> str | None:
    """Return the address in the site of what a page links to, or None where the site cannot hold it.

    >>> target_of("docs/how-to/papers.md", "../../CHANGELOG.md")
    'repository/CHANGELOG.md'
    >>> target_of("CHANGELOG.md", "docs/index.md")
    'index.md'
    """
    path = os.path.normpath(os.path.join(os.path.dirname(source), link))
    if (ROOT / path).is_dir():
        path = f"{path}/README.md"
    if path.startswith("..") or not (ROOT / path).is_file():
        return None
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{BESIDE}{path}"


def linked(sources: Iterable[str]) -> set[str]:
    """Return the addresses of the files outside docs/ that pages link to, and that these link to in turn."""
    known: set[str] = set()
    waiting = list(sources)
    while waiting:
        source = waiting.pop()
        for _, link, _ in LINK.findall((ROOT / source).read_text(encoding="utf-8")):
            target = None if "://" in link else target_of(source, link)
            if target is not None and target.startswith(BESIDE) and target not in known:
                known.add(target)
                waiting += [source_of(target)] if target.endswith(".md") else []
    return known


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the linked files of the repository to the site."""
    from mkdocs.structure.files import File

    for uri in sorted(linked([source_of(file.src_uri) for file in files.documentation_pages()])):
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / source_of(uri))))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of a page to where their targets lie in the site."""
    del config, files
    source, folder = source_of(page.file.src_uri), os.path.dirname(page.file.src_uri)

    def site_link(found: re.Match[str]) -> str:
        text, link, anchor = found.groups()
        if "://" in link:
            return found[0]
        target = target_of(source, link)
        return text if target is None else f"[{text}]({os.path.relpath(target, folder)}{anchor})"

    return LINK.sub(site_link, markdown)
