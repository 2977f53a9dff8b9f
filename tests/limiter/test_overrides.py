"""Changed limits without a middleware: what is refused, what a store keeps, and what holds while it is away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from slidegate import ConfigurationError, Limiter, MemoryStore, Quota, StoreError
from slidegate.core import AnyLimit, Concurrency, parse_limits
from slidegate.core.store import StatsRow
from slidegate.limiter import Override, overrides
from slidegate.limiter.overrides import ROLLUP, NamedLimit
from slidegate.testing import FakeClock, RecordingObserver

from ..ops.shared_rows import SharedRows

HOUR_US = 3_600_000_000


class Rules:
    """Stands for a middleware: it has limits, and counts by its own copies of them."""

    def __init__(self, limiter: Limiter, **limits: str | AnyLimit) -> None:
        self.limits = {
            name: parse_limits(limit)[0] if isinstance(limit, str) else limit for name, limit in limits.items()
        }
        self.fixed = ""
        self.cost = 1
        self.owned: dict[str, AnyLimit] = {}
        self.begun = 0
        limiter.engine.callers.add(self)

    def buckets(self) -> tuple[()]:
        return ()

    def named_limits(self) -> Iterator[NamedLimit]:
        for name, limit in self.limits.items():
            owned = self.owned.setdefault(name, limit.own())
            yield NamedLimit(name, limit, self.cost, self.fixed, owned=owned)

    @property
    def changed(self) -> dict[str, int]:
        """The amounts that differ from those in code."""
        limits = self.limits
        return {name: one.amount for name, one in self.owned.items() if one.amount != limits[name].amount}

    def begin_anew(self) -> None:
        self.begun += 1


class Scene:
    """A limiter on a board that others could write on, its rules, and an ear."""

    def __init__(self, board: SharedRows | None = None) -> None:
        self.board = SharedRows() if board is None else board
        self.heard = RecordingObserver()
        self.store = MemoryStore(clock=self.board.clock)
        self.store.shared_stats = self.board
        self.limiter = Limiter(self.store, observers=[self.heard])
        self.rules = Rules(self.limiter, api="10/minute", calm="5/minute @5", plan=Quota("100/month"))
        self.rules.limits["api-concurrency"] = Concurrency(4)

    async def change(self, name: str = "api", limit: str = "20/minute", duration: str = "1h") -> Override:
        return await self.limiter.override(name, limit, duration=duration, reason="why", by="ann")

    def known(self) -> dict[str, str]:
        return {name: one.limit for name, one in self.limiter.engine.overrides.known.items()}

    def kinds(self) -> list[str]:
        return [event.kind for event in self.heard.events]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def details(events: Iterable[Any]) -> list[dict[str, Any]]:
    return [dict(event.details) for event in events]


@pytest.mark.parametrize(
    ("name", "limit", "says"),
    [
        ("api", "50/hour", "'api': in the code it is '10/1m', and its amount alone can change; write for .* '5/1m'"),
        ("api", "50/minute @10", "in the code it is '10/1m'"),
        ("calm", "5/minute @64", "in the code it is '5/1m @5'"),
        ("api", "7", "in the code it is '10/1m'"),
        ("api", "50/month", "in the code it is '10/1m'"),
        ("plan", "50/week", "in the code it is '100/month'.* write for example '50/month'"),
        ("plan", "50/minute", "in the code it is '100/month'"),
        ("api-concurrency", "4/minute", "in the code it is '4'.* write for example '2'"),
        ("api", "101/minute", "expected an amount from 1 to 100, .* 10 times .* not 101"),
        ("api", "0/minute", "amount: expected a whole number from 1"),
        ("api", "5/minute; 50/hour", "expected one"),
        ("api", "50/minut", "did you mean 'min"),
        ("api", 5, "expected text such as"),
        ("apy", "5/minute", "'apy': no rule has a limit of this name.*did you mean 'api'"),
        ("slidegate-wrong-tokens", "5/minute", "operators' tools cannot be changed"),
        ("a:b", "5/minute", "limit name"),
    ],
)
async def test_what_cannot_be_changed_so_is_refused_with_what_could(
    scene: Scene, name: str, limit: Any, says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        await scene.change(name, limit)
    assert scene.board.rows == {}
    assert scene.rules.changed == {}


@pytest.mark.parametrize("duration", ["0s", "31d", "999ms", "permanent", 0])
async def test_a_change_lasts_from_a_second_to_thirty_days(scene: Scene, duration: str) -> None:
    with pytest.raises(ConfigurationError, match=r"override: duration: (expected|must be greater than zero)"):
        await scene.change(duration=duration)
    for fits in ("1s", "30d"):
        await scene.change(duration=fits)


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("api", "1/minute"),
        ("api", " 100 per 60s "),
        ("api", "9/minute @64"),
        ("calm", "9/minute"),
        ("calm", "9/minute @5"),
        ("plan", "1000/month"),
        ("api-concurrency", "40"),
    ],
)
async def test_a_limit_of_each_kind_takes_another_amount(scene: Scene, name: str, limit: str) -> None:
    made = await scene.change(name, limit)
    assert scene.known() == {name: limit.strip()}
    assert await scene.limiter.overrides() == [made]
    assert made.until - made.since == timedelta(hours=1)
    assert (made.length_us, made.until_us) == (HOUR_US, scene.board.clock() + HOUR_US)


async def test_an_amount_below_the_cost_of_a_request_is_refused_and_so_is_a_limit_that_is_fixed(scene: Scene) -> None:
    scene.rules.cost = 5
    with pytest.raises(ConfigurationError, match="from 5 to 100, because a request costs 5"):
        await scene.change(limit="4/minute")
    scene.rules.fixed = "it stands for ever"
    with pytest.raises(ConfigurationError, match="'api': it stands for ever"):
        await scene.change()


async def test_a_process_without_rules_takes_any_name_and_a_worker_says_that_it_has_none(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    script = Limiter(scene.store)
    await script.override("apy", "5/minute", duration="1h")
    await script.override("calm", "500/minute", duration="1h")
    for _ in range(3):
        await scene.limiter.engine.overrides.refresh()
    logged = [record.getMessage().removeprefix("slidegate: ") for record in caplog.records]
    assert [line.partition(", because")[0] for line in logged] == [
        "no rule of this worker has a limit 'apy' yet; did you mean 'api'?",
        "an override was not applied: limit 'calm': expected an amount from 1 to 50",
    ]
    assert scene.kinds() == []


async def test_the_last_writer_wins_and_every_worker_tells_both_amounts(scene: Scene) -> None:
    other = Scene(scene.board)
    await scene.change(limit="20/minute")
    await other.limiter.engine.overrides.refresh()
    made = await other.change(limit="30/minute")
    await scene.limiter.engine.overrides.refresh()
    assert scene.known() == other.known() == {"api": "30/minute"}
    assert await other.limiter.restore("api")
    assert not await other.limiter.restore("api")
    await scene.limiter.engine.overrides.refresh()
    assert scene.known() == other.known() == {}
    assert scene.rules.changed == other.rules.changed == {}
    assert scene.kinds() == ["limit_overridden", "limit_overridden", "limit_restored"]
    told = details(scene.heard.events)
    assert [(one["was"], one["amount"]) for one in told] == [(10, 20), (20, 30), (30, 10)]
    assert {(one["limit"], one["by"], one["reason"]) for one in told} == {("api", "ann", "why")}
    assert {one["until"] for one in told} == {made.until}
    assert details(other.heard.events) == told


async def test_it_is_over_by_the_time_of_the_store_also_while_that_is_away(scene: Scene) -> None:
    changes = scene.limiter.engine.overrides
    await scene.change(duration="1h")
    await scene.change("calm", "6/minute", duration="2h")
    scene.board.is_failing = True
    scene.board.clock.advance("59m")
    await look(scene)
    assert set(scene.known()) == {"api", "calm"}, "the last that is known holds"
    scene.board.clock.advance("1m")
    await look(scene)
    assert set(scene.known()) == {"calm"}
    with pytest.raises(StoreError):
        await changes.refresh()
    with pytest.raises(StoreError):
        await scene.change()
    scene.board.is_failing = False
    scene.board.clock.advance("59m")
    await look(scene)
    assert set(scene.known()) == {"calm"}
    scene.board.clock.advance("1m")
    await look(scene)
    assert scene.known() == {}


async def look(scene: Scene) -> None:
    """Have one look of the timer be over."""
    changes = scene.limiter.engine.overrides
    await changes.end()
    changes.start()
    await anyio.lowlevel.checkpoint()
    assert changes._task is not None
    await changes._task


async def until(holds: Callable[[], object]) -> None:
    """Wait for what a timer does."""
    with anyio.fail_after(60):
        while not holds():  # noqa: ASYNC110 - nothing tells of it
            await anyio.sleep(0.001)


async def test_the_timer_takes_what_others_write_and_ends_with_the_limiter(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overrides, "INTERVAL_S", 0.001)
    other = Scene(scene.board)
    changes = other.limiter.engine.overrides
    changes.start()
    changes.start()
    await scene.change()
    await until(lambda: other.known() == {"api": "20/minute"})
    scene.board.clock.advance("1h")
    await until(lambda: not other.known())
    await other.limiter.close()
    task = changes._task
    await anyio.sleep(0.05)
    assert changes._task is task, "nobody looks any more"


async def test_a_store_of_one_process_keeps_changes_there_and_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overrides, "INTERVAL_S", 0.001)
    clock = FakeClock(1_800_000_000_000_000)
    limiter = Limiter(MemoryStore(clock=clock))
    rules = Rules(limiter, api="10/minute")
    limiter.engine.overrides.start()
    assert limiter.engine.ending == [], "nothing is looked at where nothing is changed"
    await limiter.override("api", "5/minute", duration="1h")
    await limiter.override("api", "6/minute", duration="1h")
    assert rules.changed == {"api": 6}
    clock.advance("1h")
    await until(lambda: not rules.changed)
    assert await limiter.overrides() == []
    await limiter.override("api", "7/minute", duration="1h")
    limiter.engine.forget()
    assert rules.changed == {}
    await limiter.override("api", "8/minute", duration="1h")
    assert await limiter.restore("api")
    assert rules.changed == {}
    await limiter.close()


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        *(
            json.dumps({**{"name": "calm", "limit": "6/minute", "by": "", "reason": ""}, **times, **more}).encode()
            for times in ({"made_us": 0, "length_us": 1, "until_us": 2**51},)
            for more in (
                {"limit": "6 a minute"},
                {"limit": 6},
                {"name": 7},
                {"by": None},
                {"made_us": "0"},
                {"made_us": -1},
                {"length_us": 2**60},
                {"until_us": 1e300},
                {"later": 1},
            )
        ),
    ],
)
async def test_a_row_that_cannot_be_read_is_passed_by(scene: Scene, value: bytes) -> None:
    await scene.board.write(b"stranger", [StatsRow(ROLLUP, 0, value, HOUR_US)])
    await scene.change()
    assert scene.known() == {"api": "20/minute"}


async def test_a_look_that_began_before_a_change_takes_nothing_back(scene: Scene) -> None:
    changes = scene.limiter.engine.overrides
    read = scene.board.read
    entered, goes_on = anyio.Event(), anyio.Event()

    async def slow_read(rollup: str, first: int, last: int) -> list[tuple[int, bytes, bytes]]:
        rows = await read(rollup, first, last)
        if not entered.is_set():
            entered.set()
            await goes_on.wait()
        return rows

    scene.board.read = slow_read  # type: ignore[method-assign]
    async with anyio.create_task_group() as group:
        group.start_soon(changes.refresh)
        await entered.wait()
        await scene.change()
        goes_on.set()
    assert scene.known() == {"api": "20/minute"}
    assert scene.kinds() == ["limit_overridden"]


async def test_a_command_hears_what_the_store_says_although_a_look_has_begun_meanwhile(scene: Scene) -> None:
    other = Scene(scene.board)
    await other.change()
    read, waits = scene.board.read, [anyio.Event(), anyio.Event()]
    left = list(waits)

    async def slow_read(rollup: str, first: int, last: int) -> list[tuple[int, bytes, bytes]]:
        rows = await read(rollup, first, last)
        if left:
            await left.pop(0).wait()
        return rows

    scene.board.read = slow_read  # type: ignore[method-assign]
    async with anyio.create_task_group() as group:
        group.start_soon(scene.limiter.engine.overrides.refresh)  # that of a command
        await anyio.lowlevel.checkpoint()
        group.start_soon(scene.limiter.engine.overrides.refresh)  # that of the timer
        waits[0].set()
        await until(lambda: scene.known() == {"api": "20/minute"})
        waits[1].set()


async def test_a_change_is_over_in_time_although_what_the_store_says_is_odd(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.change(duration="1h")

    async def odd(*asked: object) -> Any:
        raise RuntimeError("odd")

    scene.board.read = odd  # type: ignore[method-assign]
    scene.board.clock.advance("1h")
    await look(scene)
    assert scene.known() == {}
    assert "changed limits cannot be read" in caplog.text


async def test_a_change_by_the_short_loop_of_a_thread_is_ended_by_that_of_the_application(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(overrides, "INTERVAL_S", 0.001)
    clock = FakeClock(1_800_000_000_000_000)
    limiter = Limiter(MemoryStore(clock=clock))
    limiter.engine.overrides.start()  # as the first request does

    async def change() -> None:
        await limiter.override("api", "5/minute", duration="1h")

    await anyio.to_thread.run_sync(lambda: asyncio.run(change()))
    assert list(limiter.engine.overrides.known) == ["api"]
    clock.advance("1h")
    await until(lambda: not limiter.engine.overrides.known)


async def test_all_limits_of_a_name_take_a_change_or_none_and_one_that_is_fixed_is_no_obstacle(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    dear, unnamed = Rules(scene.limiter, api="10/minute"), Rules(scene.limiter, api="10/minute")
    dear.cost, unnamed.fixed = 6, "its rule has no name"
    await scene.change(limit="7/minute")
    assert [rules.changed for rules in (scene.rules, dear)] == [{"api": 7}] * 2
    script = Limiter(scene.store)
    await script.override("api", "5/minute", duration="1h")
    await scene.limiter.engine.overrides.refresh()
    assert [rules.changed for rules in (scene.rules, dear)] == [{}] * 2
    assert scene.kinds() == ["limit_overridden"]
    assert "an override was not applied: limit 'api': expected an amount from 6" in caplog.text


async def test_a_child_of_fork_looks_by_a_loop_of_its_own(scene: Scene) -> None:
    changes = scene.limiter.engine.overrides
    changes.start()
    assert changes._loop is not None
    changes.begin_anew()
    assert (changes._loop, scene.rules.begun) == (None, 1)


def test_without_an_event_loop_nothing_is_changed_that_nobody_would_end() -> None:
    limiter = Limiter(MemoryStore())
    changing = limiter.override("api", "5/minute", duration="1h")
    with pytest.raises(ConfigurationError, match="is ended by a timer of an event loop, and none runs here"):
        changing.send(None)
    assert limiter.engine.overrides.known == {}


def test_without_an_event_loop_nothing_is_begun(scene: Scene) -> None:
    scene.limiter.engine.overrides.start()
    assert scene.limiter.engine.overrides._loop is None
    assert scene.limiter.engine.ending == []
