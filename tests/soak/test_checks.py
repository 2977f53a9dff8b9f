"""The judge of a soak finds what was broken, and accuses nobody without proof."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.soak.checks import broken_bounds, grown, leaked, lost_bans, most_inside, slope_mib_per_minute
from tests.soak.record import Answer, Promise, Sample

PROMISE = Promise("/a", 3, 10, "a")
SERVICE = Promise("*", 3, 10, "service", shared=True)


def passed(*spans: tuple[float, float], client: str = "192.0.2.1", status: int = 200) -> list[Answer]:
    return [Answer(client, "/a", status, sent_s, received_s) for sent_s, received_s in spans]


def banned(sent_s: float, received_s: float, retry_after_s: int) -> Answer:
    return Answer("192.0.2.1", "/a", 403, sent_s, received_s, True, retry_after_s)


def test_a_window_that_held_one_more_than_its_limit_is_found() -> None:
    answers = passed((1, 1.1), (2, 2.1), (5, 5.1), (10, 10.9), (30, 30.1))
    (found,) = broken_bounds(answers, [PROMISE])
    assert found == "a: 192.0.2.1 got 4 through in one window of 3/10s, at 1.000 s"


def test_an_answer_that_may_have_been_decided_outside_the_window_is_no_proof() -> None:
    assert broken_bounds(passed((1, 1.1), (2, 2.1), (5, 5.1), (10, 11.2)), [PROMISE]) == []
    assert broken_bounds(passed((1, 1.1), (2, 2.1), (5, 5.1), (1, 1.1), client="192.0.2.2"), [PROMISE])
    assert not broken_bounds([*passed((1, 2), (1, 2)), *passed((1, 2), (1, 2), client="192.0.2.2")], [PROMISE])


def test_refused_requests_and_those_that_the_rule_does_not_count_are_left_out() -> None:
    assert broken_bounds(passed((1, 2), (1, 2), (1, 2)) + passed((1, 2), (1, 2), status=429), [PROMISE]) == []
    assert broken_bounds(passed((1, 2), (1, 2), (1, 2)) + passed((1, 2), status=404), [PROMISE]) == []


def test_a_limit_for_everybody_counts_all_clients_and_paths() -> None:
    answers = passed((1, 2), (1, 2)) + passed((1, 2), client="192.0.2.2") + passed((1, 2), status=404)
    (found,) = broken_bounds(answers, [SERVICE])
    assert found.startswith("service: everybody got 4 through")
    assert broken_bounds(answers[:3], [SERVICE]) == []


def test_the_most_spans_inside_a_window_are_those_of_a_plain_count() -> None:
    chance = random.Random(7)
    for _ in range(200):
        starts = [chance.uniform(0, 30) for _ in range(chance.randrange(20))]
        spans = [(start, start + chance.choice([0.0, 0.5, 4.0, 12.0])) for start in starts]
        plain = max((sum(a >= start and b <= start + 10 for a, b in spans) for start, _ in spans), default=0)
        assert most_inside(spans, 10)[0] == plain


def test_a_request_that_passed_during_a_ban_is_found() -> None:
    (found,) = lost_bans([banned(1, 1.1, 60), *passed((40, 40.1))])
    assert found == "ban: 192.0.2.1 passed at 40.100 s, 19.896 s too early"
    assert len(lost_bans([*passed((40, 40.1), status=404), banned(1, 1.1, 60)])) == 1


def test_requests_beside_a_ban_are_no_proof() -> None:
    unknown_yet, ended, other = passed((1.05, 5)), passed((59.9, 60.5)), passed((30, 31), client="192.0.2.2")
    assert lost_bans([banned(1, 1.1, 60), *unknown_yet, *ended, *other]) == []
    assert lost_bans([banned(1, 1.1, 60), *passed((30, 31), status=503)]) == []


def test_an_end_is_not_known_better_than_the_clock_that_names_it() -> None:
    answers = [banned(1, 1.1, 60), *passed((59.7, 59.8))]
    assert len(lost_bans(answers)) == 1
    assert lost_bans(answers, lag_s=0.25) == []


def life(*resident_mib: float) -> Sequence[Sample]:
    return [Sample(float(second), mib, 3, 10) for second, mib in enumerate(resident_mib)]


def test_a_worker_that_grows_is_found_and_one_that_warms_up_is_not() -> None:
    leaking, warming = life(*range(40, 80)), life(*range(40, 60), *([60] * 20))
    assert slope_mib_per_minute(leaking) == 60.0
    assert slope_mib_per_minute(warming) == 0.0
    assert grown([("a", leaking), ("b", warming), ("c", [])]) == ["memory: a grew by 19.0 MiB, 60.00 MiB a minute"]


def test_tasks_and_files_that_are_left_over_are_found() -> None:
    first = Sample(0, 40, 3, 10)
    assert leaked("a", first, Sample(9, 40, 5, 12)) == []
    assert len(leaked("a", first, Sample(9, 40, 30, 12))) == 1
    assert len(leaked("a", first, Sample(9, 40, 3, 60))) == 1
