"""The chart in README and docs is drawn from the saved figures, in light and in dark."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from benchmarks.report import chart, figures
from benchmarks.report.tables import Cell, Table

SVG = "{http://www.w3.org/2000/svg}"
COLUMNS = {"what": "", "added us": "+.2f", "to": ""}


def measured(**added_us: float) -> figures.Figures:
    """Return figures in which gates add the same, admitted and refused."""
    rows: list[list[Cell]] = [["bare Starlette", None, None], ["elsewhere", 1.0, "bare FastAPI"]]
    rows += [[name, value, "bare Starlette"] for name, value in added_us.items()]
    tables = [Table(title, COLUMNS, rows) for title in chart.PANELS]
    return figures.Figures("x", "2026-01-02", {"cores": 2}, {"CPython": "3"}, tables)


def widths(text: str, colour: str) -> list[float]:
    return [
        float(bar.attrib["width"])
        for bar in ElementTree.fromstring(text).iter(f"{SVG}rect")
        if bar.attrib["fill"] == colour
    ]


@pytest.mark.parametrize("path", chart.charts(), ids=lambda path: path.stem)
def test_the_committed_chart_is_what_the_saved_figures_draw(path: chart.Path) -> None:
    assert path.read_text("utf-8") == chart.charts()[path], "run python3 dev.py bench --write"


@pytest.mark.parametrize("theme", chart.THEMES.values(), ids=chart.THEMES)
def test_bars_are_as_long_as_what_they_show(theme: chart.Theme) -> None:
    text = chart.draw(measured(slidegate=4.0, peer=6.0, other=-1.0), theme)
    (ours, ours_again), others = widths(text, theme.ours), widths(text, theme.others)
    assert ours == ours_again
    assert others[:2] == [pytest.approx(1.5 * ours, abs=0.2), pytest.approx(0.25 * ours, abs=0.2)]


def test_the_page_shows_the_chart_in_light_and_in_dark() -> None:
    shown = (chart.TARGETS.parent / "benchmarks.md").read_text("utf-8")
    assert all(f"charts/{path.name}" in shown for path in chart.charts())
