"""A link to a file leads to the page that stands for it on the site, or keeps its text alone."""

from __future__ import annotations

import re

import pytest
from markdown import Markdown

from scripts.site_pages import DOCS, ROOT, RootFiles, placed


@pytest.mark.parametrize(
    ("target", "source", "page", "expected"),
    [
        ("bans.md#safety", "docs/guides/rules.md", "guides/rules.md", "bans.md#safety"),
        ("#here", "docs/guides/rules.md", "guides/rules.md", "#here"),
        ("https://example.org/a/b", "docs/guides/rules.md", "guides/rules.md", "https://example.org/a/b"),
        ("../../examples/demo/", "docs/guides/rules.md", "guides/rules.md", None),
        ("../CHANGELOG.md", "docs/design.md", "design.md", None),
        ("../README.md#two-commands", "docs/design.md", "design.md", "index.md#two-commands"),
        ("../../../../etc/passwd", "docs/guides/rules.md", "guides/rules.md", None),
        ("docs/guides/bans.md#safety", "README.md", "index.md", "guides/bans.md#safety"),
        ("tests/README.md", "README.md", "index.md", None),
    ],
)
def test_a_link_leads_to_the_same_page_or_nowhere(target: str, source: str, page: str, expected: str | None) -> None:
    assert placed(target, ROOT / source, DOCS / page) == expected


def test_the_front_page_finds_its_pictures_and_asks_no_other_host() -> None:
    text = "\n".join(RootFiles(Markdown()).run(["<!-- page: README.md -->"]))
    pictures = re.findall(r'\b(?:src|srcset)="([^"]+)"', text)
    assert len(pictures) == 4
    assert [picture for picture in pictures if not (DOCS / picture).is_file()] == []
    assert "![" not in text
