"""A Python-Markdown extension that adapts pages to the site, which lacks some files of the checkout.

* ``<!-- page: CHANGELOG.md -->`` as the first line of a page includes that file of the root.
* Empty header cells of tables become plain cells, so that screen readers do not announce them as headings.
* Links to included files, and to the README, lead to their pages. Links to other files outside of `docs` are reduced to
  their text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor
from markdown.treeprocessors import Treeprocessor

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from markdown import Markdown

ROOT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = ROOT / "docs"
PAGE: Final = re.compile(r"<!-- page: ([\w.]+) -->")
PAGES: Final = {"README.md": "index.md", "CHANGELOG.md": "reference/changelog.md"}
"""Files of the root, and the pages in `docs` that stand for them."""


def placed(target: str, source: Path, page: Path) -> str | None:
    """Return a relative link as it must be on the site; None if the site has no such file.

    Args:
        target: The link.
        source: The file that contains the link.
        page: The page that shows that file.
    """
    parts = urlsplit(target)
    if parts.scheme or parts.netloc or not parts.path or parts.path.startswith("/"):
        return target
    file = Path(os.path.normpath(source.parent / parts.path))
    if file.parent == ROOT and file.name in PAGES:
        file = DOCS / PAGES[file.name]
    if not file.is_relative_to(DOCS):
        return None
    return parts._replace(path=os.path.relpath(file, page.parent)).geturl()


class RootFiles(Preprocessor):
    """Replaces the comment of a page by the text of a file in the root."""

    source: Path | None = None

    def run(self, lines: list[str]) -> list[str]:
        """Return the lines of the page."""
        found = PAGE.fullmatch(lines[0]) if lines else None
        if found is None:
            return lines
        self.source = ROOT / found[1]
        return self.source.read_text("utf-8").splitlines()


class LinksAndTables(Treeprocessor):
    """Adapts links to the site, and turns empty header cells into plain ones."""

    def __init__(self, md: Markdown, files: RootFiles) -> None:
        super().__init__(md)
        self._files = files

    def run(self, root: Element) -> None:
        """Change the elements of a page."""
        # The site builder registers a preprocessor that only stores the current page.
        page = DOCS / next(part.page.path for part in self.md.preprocessors if hasattr(part, "page"))
        for link in root.iter("a"):
            target = placed(link.get("href", ""), self._files.source or page, page)
            if target is not None:
                link.set("href", target)
            else:
                link.tag = "span"
                del link.attrib["href"]
        for cell in root.iter("th"):
            if not "".join(cell.itertext()).strip():
                cell.tag = "td"


class SitePages(Extension):
    """Registers both processors."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Add the processors to a converter."""
        files = RootFiles(md)
        # Before all other preprocessors, and after links have become elements.
        md.preprocessors.register(files, "root_files", 100)
        md.treeprocessors.register(LinksAndTables(md, files), "site_links", 1)


def makeExtension(**options: Any) -> SitePages:
    """Return the extension; Python-Markdown looks for this name."""
    return SitePages(**options)
