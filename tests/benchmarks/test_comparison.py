"""The README puts slidegate beside others by facts that other pages prove, and by saved figures."""

from __future__ import annotations

import pytest

from benchmarks.report import comparison, figures
from benchmarks.report.tables import Table

PAGE = """
| | slowapi | slidegate |
| --- | --- | --- |
| Most of all | 199 | 100 |
| `a` and `b` | 10; 11 | 50 |

| more | slowapi |
| --- | ---: |
| Others | `x` |
"""


def read(page: str) -> str:
    return (comparison.ROOT / comparison.PAGES / f"{page}.md").read_text("utf-8")


def test_the_readme_holds_the_table_of_the_pages_and_figures() -> None:
    text = comparison.README.read_text("utf-8")
    assert comparison.PLACE.search(text)
    assert text == comparison.filled(text), "run python3 dev.py bench --write"


def test_facts_are_found_by_row_and_column() -> None:
    assert comparison.fact(PAGE, "Most", "slidegate") == "100"
    assert comparison.fact(PAGE, "`a` and", "slowapi") == "10; 11"
    assert comparison.fact(PAGE, "Others", "slowapi") == "`x`"


@pytest.mark.parametrize(("row", "column"), [("Nothing", "slowapi"), ("Others", "slidegate"), ("Most", "nobody")])
def test_a_fact_that_is_gone_is_an_error_and_no_empty_cell(row: str, column: str) -> None:
    with pytest.raises(LookupError, match="no table has the row"):
        comparison.fact(PAGE, row, column)


def test_costs_are_those_of_the_benchmark_and_empty_where_nothing_was_measured() -> None:
    columns = {"what": "", "added us": "+.2f"}
    tables = [
        Table(f"One request, {outcome}", columns, [["slidegate", value]])
        for outcome, value in (("admitted", 4.4), ("refused", -1.6))
    ]
    found = figures.Figures("x", "2026-01-02", {"cores": 2}, {"CPython": "3"}, tables)
    assert comparison.added(found, {"slidegate": "slidegate"}, "slidegate") == "+4; -2"
    assert comparison.added(found, {}, "slidegate") == ""
    with pytest.raises(KeyError):
        comparison.added(found, {"slidegate": "gone"}, "slidegate")


def test_what_nobody_measures_is_said_for_all_and_stands_on_the_pages() -> None:
    assert {len(said) for said in comparison.KNOWN.values()} == {1 + len(comparison.OTHERS)}
    for page, words in (
        ("asgi_ratelimit", ("block_time", "RedisBackend")),
        ("limits", ("Memcached, MongoDB",)),
        ("fastapi_limiter", ("Redis, SQLite or Postgres",)),
        ("slowapi", ("storage_uri",)),
    ):
        assert [word for word in words if word not in read(page)] == []
