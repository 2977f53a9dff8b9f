"""Pages fit the site: root files become pages, and a link to a file that the site lacks keeps its text alone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from markdown import Markdown
from markdown.preprocessors import Preprocessor

from scripts.site_pages import DOCS, PAGES, ROOT, SitePages, placed


def rendered(text: str, path: str) -> str:
    """Return the HTML of a page, as the builder of the site has it made."""
    converter = Markdown(extensions=["tables", SitePages()])
    keeper = Preprocessor(converter)
    keeper.page = SimpleNamespace(path=path)  # type: ignore[attr-defined]
    keeper.run = lambda lines: lines  # type: ignore[method-assign]
    converter.preprocessors.register(keeper, "keeper", 0)
    return converter.convert(text)


@pytest.mark.parametrize(
    ("target", "source", "page", "expected"),
    [
        ("bans.md#safety", "docs/guides/rules.md", "guides/rules.md", "bans.md#safety"),
        ("#here", "docs/guides/rules.md", "guides/rules.md", "#here"),
        ("https://example.org/a/b", "docs/guides/rules.md", "guides/rules.md", "https://example.org/a/b"),
        ("../../examples/demo/", "docs/guides/rules.md", "guides/rules.md", None),
        ("../CHANGELOG.md#unreleased", "docs/design.md", "design.md", "changelog.md#unreleased"),
        ("../../../../etc/passwd", "docs/guides/rules.md", "guides/rules.md", None),
        ("docs/guides/bans.md#safety", "CHANGELOG.md", "changelog.md", "guides/bans.md#safety"),
        ("tests/README.md", "CHANGELOG.md", "changelog.md", None),
    ],
)
def test_a_link_leads_to_the_same_page_or_nowhere(target: str, source: str, page: str, expected: str | None) -> None:
    assert placed(target, ROOT / source, DOCS / page) == expected


@pytest.mark.parametrize(("file", "page"), PAGES.items())
def test_a_page_shows_the_file_that_it_stands_for(file: str, page: str) -> None:
    mark = (DOCS / page).read_text("utf-8")
    assert mark == f"<!-- page: {file} -->\n"
    title = (ROOT / file).read_text("utf-8").partition("\n")[0].removeprefix("# ")
    shown = rendered(mark, page)
    assert f"<h1>{title}</h1>" in shown
    assert "docs/" not in "".join(part.partition('"')[0] for part in shown.split('href="')[1:])


def test_text_stays_where_a_link_goes_and_an_empty_heading_becomes_a_cell() -> None:
    shown = rendered("[the **demo**](../../examples/demo/)\n\n| | `a` |\n| --- | --- |\n| 1 | 2 |\n", "guides/rules.md")
    assert "<span>the <strong>demo</strong></span>" in shown
    assert "href" not in shown
    assert shown.count("<th>") == 1
