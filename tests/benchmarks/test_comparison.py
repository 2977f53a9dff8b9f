"""The README puts slidegate beside others by facts that other pages prove, and by saved figures."""

from __future__ import annotations

import pytest

from benchmarks.report import comparison

PAGE = """
| limiter | Most of all | `a` and `b`: admitted |
| --- | --- | --- |
| slowapi | 199 | 10; 11 |
| slidegate | 100 | 50 |

| more | slowapi |
| --- | ---: |
| Others | `x` |
"""


def test_the_readme_holds_the_table_of_the_pages_and_figures() -> None:
    text = comparison.README.read_text("utf-8")
    assert comparison.PLACE.search(text)
    assert text == comparison.filled(text), "run python3 dev.py bench --write"


def test_facts_are_found_by_row_and_the_beginning_of_a_column() -> None:
    assert comparison.fact(PAGE, "slidegate", "Most") == "100"
    assert comparison.fact(PAGE, "slowapi", "`a` and") == "10; 11"
    assert comparison.fact(PAGE, "Others", "slowapi") == "`x`"


@pytest.mark.parametrize(("row", "column"), [("Nothing", "Most"), ("Others", "Most"), ("slowapi", "Least")])
def test_a_fact_that_is_gone_is_an_error_and_no_empty_cell(row: str, column: str) -> None:
    with pytest.raises(LookupError, match="no table has the row"):
        comparison.fact(PAGE, row, column)
