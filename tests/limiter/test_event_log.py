"""Events in a log: few lines, each of them whole, that say how much they left out."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import tracemalloc
from io import StringIO
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slidegate import BanPolicy, ConfigurationError, Limiter, MemoryStore, RateLimitMiddleware, Rule
from slidegate.events import Event
from slidegate.limiter import event_log, event_worker
from slidegate.limiter.events import KINDS, UNLOGGED
from slidegate.testing import FakeClock

from ..asgi import call, hello, statuses
from ..events_page import DETAILS
from ..redis_servers import until
from ..test_logs import EVIL

LONG_S = 60.0


class Kept(logging.Handler):
    """Keeps records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


class Site:
    """A limiter that writes its events to a logger of its own."""

    def __init__(self, **options: Any) -> None:
        self.clock = FakeClock(10**15)
        self.limiter = Limiter(MemoryStore(clock=self.clock))
        self.logger = logging.Logger("site")
        self.kept = Kept()
        self.logger.addHandler(self.kept)
        self.subscription = self.limiter.log_events(logger=self.logger, **options)

    def tell(self, count: int = 1, kind: str = "refused", **details: object) -> None:
        for _ in range(count):
            self.limiter.engine.emit(Event(kind, f"about {kind}", {"rule": "api", **details}))
            self.flush()

    def flush(self) -> None:
        assert self.limiter.engine.events.worker.flush(LONG_S)

    @property
    def lines(self) -> list[str]:
        said = [record.getMessage() for record in self.kept.records]
        assert all(line.startswith("slidegate: ") for line in said)
        return [line.removeprefix("slidegate: ") for line in said]

    @property
    def left_out(self) -> int:
        return sum(record.suppressed for record in self.kept.records)


@pytest.fixture
def site() -> Site:
    return Site()


def test_lines_of_one_kind_and_rule_come_once_a_second_and_say_how_many_they_stand_for(site: Site) -> None:
    site.tell(500)
    assert site.lines == ["refused: about refused"]
    site.clock.advance("1s")
    site.tell(2)
    assert site.lines[1:] == ["refused: about refused (and 499 times more since the last such line)"]
    assert [record.suppressed for record in site.kept.records] == [0, 499]


TOLD = st.tuples(st.sampled_from(["refused", "near_limit"]), st.sampled_from("abc"), st.integers(0, 700))


@settings(max_examples=25, deadline=None)
@given(st.lists(TOLD, max_size=60))
def test_every_event_is_a_line_or_counted_in_one_and_lines_keep_their_limit(told: list[tuple[str, str, int]]) -> None:
    site = Site(max_rate="3/second", each="1/second")
    moments: list[int] = []
    site.logger.addFilter(lambda record: moments.append(site.clock()) or True)  # type: ignore[func-returns-value]
    for kind, rule, step_ms in told:
        site.clock.advance(us=step_ms * 1_000)
        site.tell(1, kind, rule=rule)
    summaries = 0
    for _ in range(20):
        site.clock.advance("1s")
        before = len(site.lines)
        site.limiter.engine.events.rest(False)
        summaries += len(site.lines) - before
    assert len(site.lines) - summaries + site.left_out == len(told)
    for moment in moments:
        assert sum(moment - 1_000_000 < other <= moment for other in moments) <= 3


async def test_what_was_left_out_is_said_when_the_limiter_is_closed(site: Site) -> None:
    site.tell(100)
    await site.limiter.close()
    assert site.lines[1:] == ["refused: 99 times more under 'api' since the last such line"]
    assert (site.kept.records[1].kind, site.kept.records[1].rule) == ("refused", "api")


async def test_many_kinds_and_rules_are_one_line_when_the_limiter_is_closed(site: Site) -> None:
    for number in range(100):
        site.tell(rule=f"rule{number}")
    before = len(site.lines)
    await site.limiter.close()
    assert site.lines[before:] == [f"other kinds and rules: {100 - before} times more since the last such line"]


def test_it_is_also_said_when_no_event_comes_for_a_while(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_worker, "IDLE_S", 0.01)
    site.tell(7)
    site.clock.advance("1s")
    site.tell(kind="near_limit")
    until(lambda: site.left_out >= 6, "the events that were left out are told of")
    assert site.left_out == 6


def test_the_end_of_the_interpreter_says_it_too() -> None:
    code = (
        "import logging; logging.basicConfig(format='%(message)s')\n"
        "from slidegate import Limiter\nfrom slidegate.events import Event\n"
        "limiter = Limiter()\n"
        "limiter.log_events(each='1/ms')\n"
        "for number in range(3000): limiter.engine.emit(Event('refused', 'no', {'rule': 'api'}))\n"
        "limiter.engine.events.worker.flush(60)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    lines = run.stderr.splitlines()
    more = [int(count) for count in re.findall(r"(\d+) times more", run.stderr)]
    summaries = sum("under 'api'" in line for line in lines)
    assert len(lines) - summaries + sum(more) == 3000
    assert len(lines) <= 1_000


def test_kinds_that_are_logged_anyway_are_not_written_twice() -> None:
    site = Site()
    for kind in KINDS:
        site.limiter.engine.emit(Event(kind, "x"))
        site.flush()
        site.clock.advance("1s")
    assert [record.kind for record in site.kept.records] == list(UNLOGGED)
    chosen = Site(kinds=["banned"])
    chosen.tell(kind="banned")
    chosen.tell(kind="refused")
    assert [record.kind for record in chosen.kept.records] == ["banned"]


def test_no_field_of_a_detail_is_one_of_a_record() -> None:
    own = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "event", "timestamp", "level", "logger"}
    for kind, details in DETAILS.items():
        assert not details & (own | {"kind", "suppressed", "time_us"}), kind


def test_fields_are_numbers_and_bounded_printable_text(site: Site) -> None:
    site.tell(key=EVIL, retry_after_s=7, status=None, skipped={EVIL: 3}, share=0.5)
    (record,) = site.kept.records
    assert (record.retry_after_s, record.status, record.share) == (7, None, 0.5)
    assert len(record.key) <= 256
    assert record.key.isprintable()
    assert all(name.isprintable() for name in record.skipped)
    assert record.time_us == 10**15


async def test_structlog_and_a_formatter_of_json_pick_the_fields_up() -> None:
    structlog = pytest.importorskip("structlog")
    written = StringIO()
    handler = logging.StreamHandler(written)
    of_structlog = structlog.stdlib
    handler.setFormatter(
        of_structlog.ProcessorFormatter(
            foreign_pre_chain=[of_structlog.add_log_level, of_structlog.ExtraAdder()],
            processors=[of_structlog.ProcessorFormatter.remove_processors_meta, structlog.processors.JSONRenderer()],
        )
    )
    site = Site(level=logging.INFO)
    site.logger.addHandler(handler)
    middleware = RateLimitMiddleware(hello, rules=[Rule("*", "1/hour", name="api")], limiter=site.limiter)
    assert await statuses(middleware, 3) == [200, 429, 429]
    site.flush()
    near, refused = map(json.loads, written.getvalue().splitlines())
    assert (near["kind"], near["spent"]) == ("near_limit", 1)
    assert refused == {
        "event": "slidegate: refused: 203.0.113.9 was refused: limited under 'api', GET on (no route)", "level": "info",
        "kind": "refused", "suppressed": 0, "time_us": 10**15, "key": "203.0.113.9", "client": "203.0.113.9",
        "rule": "api", "limit": "1/1h", "reason": "limited", "by": "", "route": "(no route)", "method": "GET",
        "retry_after_s": 3600, "status": 429,
    }  # fmt: skip


async def test_by_default_lines_go_to_a_logger_of_the_package(caplog: pytest.LogCaptureFixture) -> None:
    limiter = Limiter()
    limiter.log_events()
    middleware = RateLimitMiddleware(hello, limits="1/hour", limiter=limiter, bans=BanPolicy("99/10m", "1h"))
    await statuses(middleware, 2)
    assert limiter.engine.events.worker.flush(LONG_S)
    assert [(record.name, record.levelname) for record in caplog.records if record.name == event_log.LOGGER] == [
        ("slidegate.events", "WARNING")
    ] * 2


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"logger": "middleware"}, "logger: expected one such as"),
        ({"level": "INFO"}, "level: expected a number such as logging.WARNING, not 'INFO'"),
        ({"max_rate": "ten"}, "ten"),
        ({"each": "1/never"}, "never"),
        ({"kinds": ["refuse"]}, "did you mean 'refused'"),
    ],
)
def test_options_that_cannot_work_are_refused(bad: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        Limiter().log_events(**bad)


@pytest.mark.parametrize("count", [2_000, pytest.param(1_000_000, marks=pytest.mark.deep)])
async def test_a_flood_with_a_log_takes_little_memory_and_few_lines(site: Site, count: int) -> None:
    middleware = RateLimitMiddleware(hello, limits="5/hour", limiter=site.limiter)
    for number in range(5_000):  # more than the queue holds
        await call(middleware, f"/{number}")
    tracemalloc.start()
    try:
        for number in range(count):
            await call(middleware, f"/{number}")
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    stats = site.limiter.event_stats()
    await site.limiter.close()
    assert held_bytes <= 8 * 2**20
    assert stats.queued <= 4_097
    assert len(site.lines) <= 10 + 1, "the clock stands still, and the last line is a summary"
    assert 0 <= 5_000 + count - (site.left_out + stats.dropped + len(site.lines)) <= 5
