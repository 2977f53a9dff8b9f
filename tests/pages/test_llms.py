"""llms.txt names every page of the site in a line, and llms-full.txt holds them all, without markup for browsers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import make_llms

from ..test_docs import SITE
from .anchors import ROOT, text_of


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site with an empty page in the place of each page."""
    for page in SITE:
        place = page.relative_to(ROOT / "docs").with_suffix("")
        directory = tmp_path / (place.parent if place.name == "index" else place)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "index.html").touch()
    return tmp_path


def test_the_index_has_a_line_for_every_page(site: Path) -> None:
    make_llms.write(site)
    lines = re.findall(r"^- \[(.+?)\]\((\S+)\): (.+)$", (site / "llms.txt").read_text("utf-8"), re.MULTILINE)
    assert len(lines) == len(SITE) == len({address for _, address, _ in lines})
    assert [address for _, address, _ in lines if not (site / address / "index.html").exists()] == []
    assert [title for title, _, summary in lines if len(summary) < 40] == []


def test_the_whole_holds_every_page_and_documents_every_name(site: Path) -> None:
    make_llms.write(site)
    whole = (site / "llms-full.txt").read_text("utf-8")
    assert [page for page in SITE if f"\n{text_of(page).partition(chr(10))[0]}\n" not in whole] == []
    assert "\n### slidegate.Rule\n\n```python\nRule(path: str | Iterable[str], limits: " in whole
    assert not re.search(r"^:::|<picture>|<!-- (?:file|varies|page)", whole, re.MULTILINE)


def test_a_site_that_lacks_a_page_is_an_error(site: Path) -> None:
    (site / "guides" / "rules" / "index.html").unlink()
    with pytest.raises(SystemExit, match=r"has no page 'guides/rules/'"):
        make_llms.write(site)
