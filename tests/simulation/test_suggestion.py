"""Suggested limits refuse at most the allowed share of clients; peaks match those of real rings."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from slidegate.core.limits import Limit
from slidegate.logs import AccessLogs, AccessRecord
from slidegate.simulation.clients import Clients
from slidegate.simulation.replay import REFUSED, Replay, scope_of
from slidegate.simulation.routes import OTHER, RouteGuesser
from slidegate.simulation.suggest import PAGE_LOAD, WINDOWS, Peaks, SuggestedRule, Suggestion, Survey, smallest_amount

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "examples" / "demo" / "sample.log"


def suggested(records: list[AccessRecord], touch: float, headroom: float = 1) -> tuple[Survey, Suggestion]:
    survey = Survey(Clients())
    for record in records:
        survey.add(record)
    suggestion = Suggestion(survey, touch, headroom)
    for record in records:
        suggestion.add(record)
    return survey, suggestion


def touch_anybody(records: list[AccessRecord], rules: list[SuggestedRule], file: Path) -> bool:
    """Return whether these limits refuse any request; stop at the first refusal."""
    tables = [f'[[rules]]\npath = "{rule.path}"\nlimits = "{rule.limits_text}"\n' for rule in rules]
    file.write_text("".join(tables))
    replay = Replay.from_file(file)
    return any(replay.play(record).outcome == REFUSED for record in records if record.method)


def test_every_limit_of_every_rule_is_the_smallest_that_spares_all_others(tmp_path: Path) -> None:
    touch = 0.05
    records = list(AccessLogs([SAMPLE]))
    survey, suggestion = suggested(records, touch)
    rules, spared = suggestion.rules(), suggestion.standing_out()
    assert len(spared) == int(touch * len(survey.clients.tallies))
    clients = Clients()
    others = [record for record in records if clients.name(scope_of(record)) not in spared]
    file = tmp_path / "rules.toml"
    assert not touch_anybody(others, rules, file)
    lowered = []
    for place, rule in enumerate(rules):
        for window, amount in rule.limits.items():
            if amount > PAGE_LOAD:
                lower = rule._replace(limits=rule.limits | {window: amount - 1})
                assert touch_anybody(others, [*rules[:place], lower, *rules[place + 1 :]], file), (rule.path, window)
                lowered.append(rule.path)
    assert len(set(lowered)) >= 2, "routes have limits that can be lowered"
    assert "*" in lowered


@given(
    gaps=st.lists(st.sampled_from([0, 1, 900, 15_625, 15_626, 100_000, 499_999, 1_000_000]), min_size=1, max_size=150),
    start_us=st.integers(0, 10_000_000),
    amount=st.integers(1, 120),
)
def test_a_limit_touches_a_client_when_the_real_ring_refuses(gaps: list[int], start_us: int, amount: int) -> None:
    times = [start_us + gap for gap in accumulate(gaps)]
    peaks = Peaks()
    for time_us in times:
        peaks.add(time_us)
    for place, window in enumerate(WINDOWS):
        limit, ring, refused = Limit(amount, window), b"", False
        for time_us in times:
            ring, state = limit.counter.spend(ring, time_us, 1)
            refused = refused or state[3] > 0
        assert peaks.touched(place, amount) == refused
        needed = smallest_amount([peaks], place)
        assert not peaks.touched(place, needed)
        assert needed == 1 or peaks.touched(place, needed - 1)


def test_short_logs_proxies_and_crawlers_are_warned_of() -> None:
    records = [
        AccessRecord(number * 1_000_000, "192.0.2.1", "GET", "/", 200, f"Mozilla/5.0 ({number})")
        for number in range(20)
    ]
    records += [
        AccessRecord(number * 1_000_000, "192.0.2.2", "GET", "/", 200, "ExampleBot/2.1") for number in range(30)
    ]
    survey, _ = suggested(records, 0.001)
    said = "\n".join(survey.warnings(0.001))
    for words in (
        "covers only 0.0 hours",
        "less than one",
        "192.0.2.1 is probably a proxy",
        "the crawler 192.0.2.2 made 60%",
    ):
        assert words in said


def test_routes_are_guessed_from_paths() -> None:
    guesser = RouteGuesser()
    assert guesser.of("/users/123?tab=1") == "/users/{id}"
    assert guesser.of("/orders/7b0e6c1e-93bb-4d5e-a1c4-0123456789ab/items/9") == "/orders/{id}/items/{id}"
    assert guesser.of("/no/such", 404) == guesser.of("*") == guesser.of("/a" * 99) == OTHER
    names = {guesser.of(f"/articles/{chr(97 + number % 26)}{chr(97 + number // 26)}") for number in range(60)}
    assert "/articles/{name}" in names
    assert len(names) == 25
