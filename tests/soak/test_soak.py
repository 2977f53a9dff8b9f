"""The judge of the soak accuses what breaks a promise by one, and nothing that keeps it; in a short soak, nothing."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ..redis_servers import needs_redis
from . import checks
from .__main__ import soak
from .checks import CLOCKS_S, Answer, Promise, Sample, broken_bounds, grown, leaked, lost_bans, most_inside

QUARTERS_S = st.integers(0, 40).map(lambda quarters: quarters / 4)
SPANS = st.lists(st.tuples(QUARTERS_S, st.integers(0, 12)).map(lambda span: (span[0], span[0] + span[1] / 4)))
PROMISE = Promise("/exact", 2, 2, "exact")


@given(SPANS, st.integers(1, 20).map(lambda quarters: quarters / 4))
def test_the_most_spans_in_a_window_are_those_of_a_search(spans: list[tuple[float, float]], window_s: float) -> None:
    inside = [sum(at <= start and end <= at + window_s for start, end in spans) for at, _ in spans]
    assert most_inside(spans, window_s)[0] == max(inside, default=0)


@pytest.mark.parametrize(("late_s", "accused"), [(0, True), (-2 * CLOCKS_S, True), (0.1, False)])
def test_one_request_too_many_is_accused_if_all_lie_inside_the_window(late_s: float, accused: bool) -> None:
    ends_s = PROMISE.window_s - CLOCKS_S + late_s
    spans = [(0.0, 0.1), (1.0, 1.1), (ends_s - 0.1, ends_s)]
    answers = [Answer("ann", "/exact", 200, *span) for span in spans]
    assert bool(broken_bounds(answers, [PROMISE])) is accused
    assert broken_bounds(answers[1:], [PROMISE]) == []
    assert broken_bounds([answer._replace(client=f"{answer.sent_s}") for answer in answers], [PROMISE]) == []
    everybody = [PROMISE._replace(path="*", shared=True)]
    others = [answer._replace(client=f"{answer.sent_s}", status=404) for answer in answers]
    assert bool(broken_bounds(others, everybody)) is accused


@pytest.mark.parametrize(
    ("sent_s", "received_s", "accused"),
    [(1.0, 1.1, True), (8.9, 8.95, True), (8.9, 9.1, False), (0.15, 1.0, False), (10.0, 10.1, False)],
)
def test_who_is_let_in_while_a_ban_is_known_to_last_is_accused(sent_s: float, received_s: float, accused: bool) -> None:
    banned = Answer("eve", "/", 403, 0.1, 0.2, banned=True, retry_after_s=10)  # until 9.1 at least
    admitted = Answer("eve", "/", 200, sent_s, received_s)
    assert bool(lost_bans([banned, admitted])) is accused
    assert lost_bans([banned, admitted._replace(client="ann")]) == []
    assert lost_bans([banned, admitted._replace(status=403)]) == []


def test_growth_and_what_is_left_are_accused_beyond_their_bounds() -> None:
    def samples(growth_mib: float) -> list[Sample]:
        return [Sample(at, 40.0 + growth_mib * (at >= 9), 3, 20) for at in range(12)]

    first = samples(0)[0]
    assert grown("a worker", samples(checks.MOST_GROWTH_MIB)) == []
    assert len(grown("a worker", samples(checks.MOST_GROWTH_MIB + 0.1))) == 1
    assert grown("a short life", samples(9)[-7:]) == []
    last = first._replace(tasks=first.tasks + checks.MORE_TASKS, files=first.files + checks.MORE_FILES)
    assert leaked("a worker", first, last) == []
    assert len(leaked("a worker", first, last._replace(tasks=last.tasks + 1, files=last.files + 1))) == 2


@pytest.mark.all
@pytest.mark.parametrize("store", ["lmdb", pytest.param("redis", marks=needs_redis)])
@pytest.mark.parametrize(
    ("seconds", "workers", "seed"), [(4, 2, 1), pytest.param(60, 3, 2, marks=pytest.mark.deep, id="a minute")]
)
def test_load_and_kills_break_no_promise(store: str, seconds: float, workers: int, seed: int) -> None:
    broken, seen = asyncio.run(soak(store, seconds, workers, seed))
    assert broken == []
    assert seen
