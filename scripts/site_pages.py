"""A Python-Markdown extension that adapts pages to the site, which lacks some files of the checkout.

* Empty header cells of tables become plain cells, so that screen readers do not announce them as headings.
* Links to the README and the changelog lead to their pages, also from the page that includes the changelog, whose links
  begin in the root. Links to other files outside of `docs` are reduced to their text.
"""

import os
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from xml.etree.ElementTree import Element

from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor

ROOT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = ROOT / "docs"
PAGES: Final = {ROOT / "README.md": DOCS / "index.md", ROOT / "CHANGELOG.md": DOCS / "reference" / "changelog.md"}
"""Files of the root, and the pages in `docs` that stand for them."""


def placed(target: str, page: Path) -> str | None:
    """Return a link of a page as it must be on the site; None if the site has no such file."""
    parts = urlsplit(target)
    if parts.scheme or parts.netloc or not parts.path or parts.path.startswith("/"):
        return target
    folder = page.parent
    if page in PAGES.values() and not (folder / parts.path).exists():
        folder = ROOT  # where what the page includes stands
    file = Path(os.path.normpath(folder / parts.path))
    file = PAGES.get(file, file)
    if not file.is_relative_to(DOCS):
        return None
    return parts._replace(path=os.path.relpath(file, page.parent)).geturl()


class LinksAndTables(Treeprocessor):
    """Adapts links to the site, and turns empty header cells into plain ones."""

    def run(self, root: Element) -> None:
        """Change the elements of a page."""
        # The site builder registers a preprocessor that only stores the current page.
        page = DOCS / next(part.page.path for part in self.md.preprocessors if hasattr(part, "page"))
        for link in root.iter("a"):
            target = placed(link.get("href", ""), page)
            if target is not None:
                link.set("href", target)
            else:
                link.tag = "span"
                del link.attrib["href"]
        for cell in root.iter("th"):
            if not "".join(cell.itertext()).strip():
                cell.tag = "td"


class SitePages(Extension):
    """Registers the processor."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Add the processor to a converter, after links have become elements."""
        md.treeprocessors.register(LinksAndTables(md), "site_links", 1)


def makeExtension(**options: Any) -> SitePages:
    """Return the extension; Python-Markdown looks for this name."""
    return SitePages(**options)
