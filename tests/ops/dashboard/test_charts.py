"""Charts are well-formed, stay inside their place, and show the numbers that they are made of."""

import re
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from slidegate.ops.dashboard import charts
from slidegate.ops.dashboard.page import rate

COUNTS = ("passed", "limited", "banned", "blocked")
STEPS = st.lists(
    st.fixed_dictionaries(
        {
            **dict.fromkeys(COUNTS, st.integers(0, 10**9)),
            **dict.fromkeys(("p50_ms", "p95_ms"), st.none() | st.floats(0.001, 10**6)),
        }
    ),
    max_size=80,
)
STEP_S = st.sampled_from([5.0, 60.0, 300.0, 1_200.0])


def stats(steps: list[dict[str, Any]], step_s: float = 5.0) -> dict[str, Any]:
    return {"steps": steps, "step_s": step_s, "start_at": 1_800_000_000.0}


def points(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.e+-]+) ([\d.e+-]+)", path)]


@given(STEPS, STEP_S)
def test_chart_of_any_numbers_is_well_formed_and_inside_its_place(steps: list[dict[str, Any]], step_s: float) -> None:
    for draw in (charts.requests, charts.times):
        chart = draw(stats(steps, step_s), rate)
        done = steps[:-1]
        tree = ET.fromstring(f"<div>{chart.drawing}</div>")
        lines = tree[1]
        wide, high = (float(one) for one in lines.attrib["viewBox"].split()[2:])
        assert wide == max(len(done), 1)
        for path in lines.iter("path"):
            for x, y in points(path.attrib["d"]):
                assert 0 <= x <= wide
                assert -0.01 <= y <= high
        titles = [title.text or "" for title in lines.iter("title")]
        assert len(titles) == len(chart.rows) == len(done)
        for title, (when, texts) in zip(titles, chart.rows, strict=True):
            legend = [f"{name} {text}" for name, text in zip(chart.names, texts, strict=True)]
            said = [one for one in legend if not one.endswith((" 0", f" {charts.NOTHING}"))]
            assert title == f"{when}: {', '.join(said) or 'none'}"
        labels = list(tree[2].iter("text"))
        assert len(labels) <= charts.MAX_TICKS
        assert "nan" not in chart.drawing


@given(STEPS.filter(lambda steps: len(steps) > 1))
def test_areas_are_stacked_in_the_order_of_the_legend(steps: list[dict[str, Any]]) -> None:
    chart = charts.requests(stats(steps), rate)
    tops: dict[str, list[float]] = {}
    for path in ET.fromstring(f"<div>{chart.drawing}</div>")[1].iter("path"):
        if path.attrib["class"].startswith("line"):
            tops[path.attrib["class"].split()[1]] = [y for _, y in points(path.attrib["d"])]
    drawn = [tops[f"s{index}"] for index in range(len(COUNTS)) if f"s{index}" in tops]
    assert {f"s{index}" for index, name in enumerate(COUNTS) if any(step[name] for step in steps[:-1])} == {*tops}
    for below, above in pairwise(drawn):
        assert all(high <= low + 0.01 for low, high in zip(below, above, strict=True))


@given(st.floats(0.001, 10**12))
def test_axis_has_round_steps_and_reaches_the_largest_value(most: float) -> None:
    step = {"p50_ms": None, "p95_ms": most}
    chart = charts.times(stats([step, step]), rate)
    ticks = [float(label.text or "") for label in ET.fromstring(f"<div>{chart.drawing}</div>")[0]]
    assert 2 <= len(ticks) <= 6
    assert ticks[0] == 0
    assert ticks[-1] >= most * 0.99999
    assert f"{ticks[1]:.0e}"[0] in "125"


@given(st.integers(1, 10**9), st.integers(0, 2 * 10**9))
def test_meter_is_amber_from_80_percent_and_red_when_nothing_is_left(amount: int, used: int) -> None:
    drawing = ET.fromstring(str(charts.meter(used, amount)))
    expected = "meter full" if used >= amount else "meter near" if used >= 0.8 * amount else "meter"
    assert drawing.attrib["class"] == expected
