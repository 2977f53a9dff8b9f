"""`slidegate explain`: text, JSON, files, and the correctness of its bounds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate.cli import main
from slidegate.cli.explain import back_after_us, most_units, steady_us
from slidegate.core.limits import Limit

EXPECTED = """\
5/minute; 50/hour
  5 per 1m: exact; the time of each unit is stored
  50 per 1h: exact; the time of each unit is stored

Maximum for one client in any span of:
    1s:              5
    1m:              5
    1h:             50
    1d:          1,200
Largest burst: 5, then retry after 1m.
Steady rate that is never refused: one request every 72s.
"""


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["explain", *arguments]) == 0
    streams = capsys.readouterr()
    assert streams.err == ""
    return streams.out


def test_limits_are_explained_to_people_and_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "5/minute; 50/hour") == EXPECTED
    facts = json.loads(said(capsys, "5/minute; 50/hour", "--format", "json"))
    assert facts["most"] == {"1s": 5, "1m": 5, "1h": 50, "1d": 1_200}
    assert (facts["limits"], facts["burst"]) == (["5/1m", "50/1h"], 5)
    assert (facts["back_after_s"], facts["steady_every_s"]) == ([60.0, 60.0], 72.0)


def test_slices_are_said_with_the_two_ends_of_the_wait(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "100/minute")
    assert "counted in 64 slices of 0.9375s and the current one" in text
    assert "retry after 60s to 60.9375s" in text


def test_each_rule_of_a_file_is_explained_and_its_store_is_not_touched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, store = tmp_path / "slidegate.toml", tmp_path / "store"
    file.write_text(
        f"""
store = "lmdb://{store}"
default_limits = "7/minute"
[[rules]]
path = "/health"
exempt = true
[[rules]]
path = "/login"
limits = ["5/minute", {{ quota = "100/day", zone = "UTC" }}]
name = "login"
concurrency = 3
""",
        "utf-8",
    )
    lines = said(capsys, str(file), "--format", "json").splitlines()
    found = {facts["title"]: facts for facts in map(json.loads, lines)}
    assert list(found) == ["rule login", "each route (default_limits)"]
    assert found["rule login"]["limits"] == ["5/1m"]
    assert len(found["rule login"]["others"]) == 2
    assert not store.exists()
    assert said(capsys, str(file)).count("not included in the bounds below") == 2


# -- the bounds, against greedy clients on real windows ----------------------------------------------------------------

ORIGIN_US = 10**15
LIMITS = st.builds(
    lambda amount, window_us, resolution: Limit(amount, timedelta(microseconds=window_us), resolution=resolution),
    st.integers(1, 40),
    st.integers(1_000, 100_000),
    st.integers(1, 12),
)
SEVERAL = st.lists(LIMITS, min_size=1, max_size=3)


def greedy(limits: Sequence[Limit], start_us: int, span_us: int) -> Iterator[tuple[int, int]]:
    """Yield (time, units) for a client that takes each unit as soon as it is available."""
    windows = [b""] * len(limits)
    now_us = start_us
    while now_us < start_us + span_us:
        windows = [limit.counter.settle(window, now_us) for limit, window in zip(limits, windows, strict=True)]
        units = min(
            limit.amount - limit.counter.state(window)[0] for limit, window in zip(limits, windows, strict=True)
        )
        windows = [
            limit.counter.charge(window, now_us, units)[0] for limit, window in zip(limits, windows, strict=True)
        ]
        yield now_us, units
        now_us += max(
            limit.counter.spend(window, now_us, 1)[1][3] for limit, window in zip(limits, windows, strict=True)
        )


@given(SEVERAL, st.integers(0, 10**6), st.integers(1, 400_000))
def test_no_greedy_client_passes_the_bound_and_none_waits_longer_than_is_said(
    limits: list[Limit], phase_us: int, span_us: int
) -> None:
    taken = list(greedy(limits, ORIGIN_US + phase_us, 500_000))[:300]
    # The span with the most units begins with a unit.
    most = max(sum(units for at_us, units in taken if first <= at_us < first + span_us) for first, _ in taken)
    assert most <= most_units(limits, span_us)
    soonest_us, latest_us = back_after_us(limits)
    assert taken[0][1] == min(limit.amount for limit in limits)
    assert all(soonest_us <= at_us - taken[0][0] <= latest_us for at_us, _ in taken[1:2])


@given(LIMITS, st.integers(1, 400_000))
def test_one_limit_is_used_up_to_its_bound(limit: Limit, span_us: int) -> None:
    # Begin with the last microsecond of a slice; for an exact limit any time will do.
    start_us = ORIGIN_US - ORIGIN_US % limit.slice_us - 1
    assert sum(units for _, units in greedy([limit], start_us, span_us)) == most_units([limit], span_us)


@given(SEVERAL, st.integers(0, 10**6))
def test_the_steady_client_is_never_refused(limits: list[Limit], phase_us: int) -> None:
    windows = [b""] * len(limits)
    for now_us in range(ORIGIN_US + phase_us, ORIGIN_US + phase_us + 400_000, steady_us(limits)):
        spent = [limit.counter.spend(window, now_us, 1) for limit, window in zip(limits, windows, strict=True)]
        windows = [window for window, _ in spent]
        assert not any(state[3] for _, state in spent)


@given(LIMITS)
def test_a_client_that_is_quicker_than_steady_is_refused(limit: Limit) -> None:
    pace_us = steady_us([limit]) - 1
    window, start_us = b"", ORIGIN_US - ORIGIN_US % limit.slice_us
    for step in range(limit.amount):
        window, state = limit.counter.spend(window, start_us + step * pace_us, 1)
        assert state[3] == 0
    assert limit.counter.spend(window, start_us + limit.amount * pace_us, 1)[1][3] > 0
