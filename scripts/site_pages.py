"""Fits pages to the site, as an extension of Python-Markdown: the checkout has files that the site does not have.

* ``<!-- page: CHANGELOG.md -->`` as the first line of a page stands for that file of the checkout's root.
* Pictures of such a file, which are HTML, are found beside the page. Badges, which another host serves, are dropped.
* A cell in the head of a table that is empty is no heading of anything, and is none for readers of screens.
* A link to such a file leads to its page. A link to another file outside of `docs` keeps its text alone.
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
BADGE: Final = re.compile(r"^\[!\[.*\n+", re.MULTILINE)
PICTURE: Final = re.compile(r'\b(src|srcset)="docs/')
PAGES: Final = {"CHANGELOG.md": "changelog.md", "README.md": "index.md"}
"""Files of the root, and the pages in `docs` that stand for them."""


def placed(target: str, source: Path, page: Path) -> str | None:
    """Return a relative link as a page of the site has it; None where the site has no such file.

    Args:
        target: The link.
        source: The file in which it stands.
        page: The page that shows it.
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
    """Puts the text of a file of the root in the place of its mark."""

    source: Path | None = None

    def run(self, lines: list[str]) -> list[str]:
        """Return the lines of the page."""
        found = PAGE.fullmatch(lines[0]) if lines else None
        if found is None:
            return lines
        self.source = ROOT / found[1]
        return PICTURE.sub(r'\1="', BADGE.sub("", self.source.read_text("utf-8"))).splitlines()


class LinksAndTables(Treeprocessor):
    """Changes links to what the site has, and makes plain cells of empty headings."""

    def __init__(self, md: Markdown, files: RootFiles) -> None:
        super().__init__(md)
        self._files = files

    def run(self, root: Element) -> None:
        """Change the elements of a page."""
        # The site's builder keeps the page in a preprocessor that does nothing else.
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
    """Registers both."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Add the processors to a converter."""
        files = RootFiles(md)
        # Before everything that looks at text, and after links have become elements.
        md.preprocessors.register(files, "root_files", 100)
        md.treeprocessors.register(LinksAndTables(md, files), "site_links", 1)


def makeExtension(**options: Any) -> SitePages:
    """Return the extension; Python-Markdown looks for this name."""
    return SitePages(**options)
