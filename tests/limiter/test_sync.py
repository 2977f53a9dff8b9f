"""A limiter in threads without an event loop: its answers, its own loop, and callers that leave early."""

import asyncio
import fcntl
import gc
import logging
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import anyio.to_thread
import pytest
import trio

from slidegate import BanPolicy, ConfigurationError, Decision, Limiter, MemoryStore, parse_limits
from slidegate.core import Bucket, Concurrency, StoreTimeout, StoreUnavailable
from slidegate.limiter import sync_runner
from slidegate.limiter.aio import answer_of, in_background
from slidegate.testing import FakeClock

from ..hurry import at_once, hurried
from ..redis_servers import AT_REDIS, BOUND_S, needs_redis, until
from ..remote_stores import SlowStore, hit_all
from ..signals import Interrupt, is_interrupted
from ..workers import TESTED
from .test_failover import LONG
from .test_limiter import QUESTIONS

WIDE = Bucket("wide", parse_limits("1000000/hour"))
OFTEN = BanPolicy("40/10m", "1h")


@pytest.mark.parametrize("store", [MemoryStore, SlowStore])
async def test_on_a_running_loop_it_says_what_to_write(store: Any) -> None:
    limiter = Limiter(store(), deadline="60s")
    limited = limiter.limited("5/minute", key="user:1", rule="hit")
    function = limited(lambda: True)

    def block() -> None:
        with limited:
            raise AssertionError

    hit, before = partial(limiter.sync.hit, "user:1", "5/minute"), threads()
    for call in (hit, limiter.sync.bans, limiter.sync.close, function, block):
        with pytest.raises(ConfigurationError, match=r"`await limiter\.hit\(\.\.\.\)`, .* `async with` or `async def`"):
            call()
    assert (await limiter.peek("user:1", "5/minute")).remaining == 4, "nothing was charged"
    assert threads() == before

    async def main() -> None:
        with pytest.raises(ConfigurationError, match="event loop"):
            hit()

    await asyncio.to_thread(trio.run, main)


@pytest.mark.parametrize("kind", ["memory", "lmdb", AT_REDIS])
async def test_in_a_worker_thread_of_a_loop_it_works(url: str) -> None:
    limiter = Limiter.from_url(url, deadline="60s")
    assert await asyncio.to_thread(limiter.sync.hit, "user:1", "2/minute")
    assert await anyio.to_thread.run_sync(limiter.limited("2/minute", key="user:1", rule="hit")(lambda: True))
    assert not await limiter.hit("user:1", "2/minute"), "both ways count together"
    await limiter.close()


@pytest.mark.parametrize("kind", ["memory", "lmdb", AT_REDIS])
def test_no_method_takes_the_event_loop_of_its_thread_away(url: str) -> None:
    """One that was set for the next `run_until_complete`, as in a notebook or a test."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        with Limiter.from_url(url, deadline="60s").sync as blocking:
            decision = blocking.hit("user:ann", "5/minute")
            for method, *arguments in (*QUESTIONS, ("refund", decision), ("close",)):
                getattr(blocking, method)(*arguments)
                assert asyncio.get_event_loop() is loop, method
    finally:
        asyncio.set_event_loop(None)
        loop.close()


class Ticking:
    """The time of waits for a gate: it passes in calls of `sleep`."""

    now_s = 1.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, span_s: float) -> None:
        self.now_s += span_s


def test_behind_a_writer_that_is_stopped_all_that_a_hit_asks_takes_little_more_than_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The changed limits of operators, too, which a thread reads before its question."""
    time = Ticking()
    for module in ("environment", "batching"):
        monkeypatch.setattr(f"slidegate.stores.lmdb.{module}.time", time)
    limiter = Limiter.from_url(f"lmdb://{tmp_path}", deadline="50ms", on_error="local")
    with limiter.sync as blocking, open(tmp_path / "gate", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for number in range(5):
            limiter.engine.refresher.fresh_until_ns, began_s = 0, time.now_s  # as half a second later
            assert blocking.hit("user:1", "100/hour").remaining == 99 - number, "counted in this process"
            assert time.now_s - began_s <= (0.062 if number < 3 else 0), number
        fcntl.flock(file, fcntl.LOCK_UN)


MANY = tuple((WIDE, f"user:{key}", 1) for key in range(8))
ASKED: dict[str, Callable[[Limiter], object]] = {
    "hit": lambda limiter: limiter.store.hit(MANY[:1]),
    "hit of several keys": lambda limiter: limiter.store.hit(MANY),
    "peek": lambda limiter: limiter.store.peek(MANY),
    "charge": lambda limiter: limiter.store.charge(MANY),
    "refund": lambda limiter: limiter.sync.refund(limiter.sync.hit("user:1", "9000/hour")),
    "ban": lambda limiter: limiter.sync.ban("user:9", "1h"),
    "strike": lambda limiter: limiter.sync.strike("user:8", OFTEN),
    "bans": lambda limiter: limiter.sync.bans(),
    "reset": lambda limiter: limiter.sync.reset_all(),
}
"""Questions and commands of a thread, by name."""


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
@pytest.mark.parametrize("asks", [["hit"], [*ASKED]], ids=["hit", "all"])
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # interrupted before its first line
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_whatever_a_signal_interrupts_the_next_is_answered(
    asks: list[str], url: str, tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any thread, and of another process. Nothing stays in the context of the thread, which later tasks inherit."""

    def interrupt(*_: object) -> None:
        if asking:
            raise Interrupt

    def ask_each() -> None:
        for name in asks:
            ASKED[name](limiter)

    if len(asks) > 1 and sys.version_info[:2] == (3, 14):
        pytest.skip("CPython 3.14 itself leaves a lock locked where a signal handler raises at the begin of a `with`")
    monkeypatch.setattr(logging.getLogger("slidegate"), "disabled", True)  # a lock of logging's would stay locked
    limiter = Limiter.from_url(url, deadline="60s")
    asking, before = False, signal.signal(signal.SIGALRM, interrupt)
    trace, context = sys.gettrace(), [*copy_context().items()]
    sys.settrace(None)  # a lock of coverage's would stay locked, too
    try:
        for _ in range(400 if len(asks) == 1 or url == "memory://" else 40):  # a ban of LMDB waits for the disk
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(20e-6, 400e-6))
            with suppress(Interrupt):
                asking = True
                for _ in range(50):
                    ASKED[rng.choice(asks)](limiter)
                asking = False  # within: the end of `suppress` may be interrupted, too
            asking = False
            # No pool, and not this thread: they would wait for ever for a lock that stays locked.
            thread = threading.Thread(target=ask_each, daemon=True)
            thread.start()
            thread.join(LONG)
            assert not thread.is_alive()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        sys.settrace(trace)
    assert [*copy_context().items()] == context
    if url != "memory://":
        with open(tmp_path / "store" / "gate", "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    limiter.sync.close()


@pytest.mark.parametrize("name", ["hit", "ban", "bans"])
def test_wherever_a_handler_asks_memory_it_waits_for_nothing_of_its_own_thread(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is answered, or told that a change is under way; and what it has interrupted goes on."""
    monkeypatch.setattr(logging.getLogger("slidegate"), "disabled", True)

    def handle(limiter: Limiter) -> None:
        for ask in ASKED.values():
            with suppress(StoreTimeout):
                ask(limiter)

    def play() -> None:
        is_there = True
        while is_there:
            limiter = Limiter()  # its first hit sweeps
            act = partial(ASKED[name], limiter)
            is_there = is_interrupted(act, next(numbers), partial(handle, limiter), "/slidegate/")
            handle(limiter)

    numbers = count()
    player = threading.Thread(target=play, daemon=True)
    player.start()
    player.join(LONG)
    assert not player.is_alive()
    assert next(numbers) > 20


def test_a_loop_that_stands_still_hangs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slidegate.limiter.sync_runner.GRACE_S", 0.05)
    released = threading.Event()

    class StrikeRecord(SlowStore):
        async def peek(self, checks: Any, subjects: Any = (), deadline_s: float = 0) -> Any:
            released.wait(LONG)
            return self.inner.peek(checks, subjects)

    with Limiter(StrikeRecord(), deadline="1ms").sync as limiter:
        with pytest.raises(StoreTimeout, match="has been blocked"):
            limiter.peek("user:1", "2/hour")
        released.set()


# -- event loops in threads --------------------------------------------------------------------------------------------

THREADS = 4
CALLS = 300


async def hand_back(limiter: Limiter, decision: Decision) -> None:
    """Refund a decision with its permits, as at the end of a request."""
    await answer_of(limiter.engine.refund(decision.begin_refund()))


def call_everything(limiter: Limiter, rng: random.Random, *, collecting: bool) -> None:
    """Make random calls in threads with an event loop each, and refund at last what they have kept."""

    async def calls(seed: int) -> None:
        rng, charged = random.Random(seed), list[Decision]()
        for _ in range(CALLS):
            key = f"user:{rng.randrange(40)}"
            match rng.choice(["hit", "hit", "hit", "permit", "permit", "refund", "refund", "peek", "reset", "ban", ""]):
                case "hit":
                    rule = f"rule {rng.randrange(900)}"
                    charged.append(await limiter.hit(key, f"{rng.randrange(1, 90)}/minute", rule=rule))
                case "permit":
                    bucket = Bucket(f"permits {rng.randrange(9)}", (Concurrency(3),))
                    charged.append(await hit_all(limiter, [(bucket, key, 1)]))
                case "refund" if charged:
                    await hand_back(limiter, charged.pop(rng.randrange(len(charged))))
                case "peek":
                    await limiter.peek(key, "5/minute", rule=rng.choice("abc"))
                case "reset":
                    await limiter.reset(key)
                case "ban":
                    await limiter.strike(key, OFTEN)
                    await limiter.ban(key, "1h")
                    await limiter.unban(key)
                case _:
                    limiter.store.permits_held()  # type: ignore[attr-defined]
        for decision in charged:
            await hand_back(limiter, decision)

    seeds = [rng.getrandbits(32) for _ in range(THREADS)]
    with hurried(collecting):
        at_once(lambda thread: asyncio.run(calls(seeds[thread])), THREADS)


@pytest.mark.parametrize("kind", ["memory", "lmdb", AT_REDIS])
@pytest.mark.parametrize("collecting", [False, pytest.param(True, marks=pytest.mark.all)])
def test_event_loops_in_threads_that_call_everything_at_once(url: str, collecting: bool, rng: random.Random) -> None:
    slow = "&timeout=60s" if url.startswith("redis") else ""  # the machine may be busy
    limiter = Limiter.from_url(f"{url}{slow}", deadline="60s")
    with limiter.sync:
        call_everything(limiter, rng, collecting=collecting)
        assert limiter.store.permits_held() == 0


def test_they_get_answers_while_a_store_comes_and_goes(rng: random.Random) -> None:
    class Flapping(SlowStore):
        def answer(self, question: Any, *arguments: Any) -> Any:
            may_fail = question in (self.inner.hit, self.inner.peek, self.inner.charge, self.inner.refund)
            if may_fail and rng.random() < 0.3:  # not by `error`, which the calls of other threads would raise, too
                raise OSError("gone")
            return super().answer(question, *arguments)

    limiter, ticks = Limiter(Flapping(FakeClock(10**9), inline=True), on_error="local"), count(10**9, 50_000)
    failover: Any = limiter.engine.failover
    failover._clock = lambda: next(ticks)
    call_everything(limiter, rng, collecting=False)
    assert limiter.failures


# -- its event loop: when it starts and ends, and callers that leave before their answer came --------------------------


ROOT = Path(__file__).resolve().parents[2]
FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(autouse=True, scope="module")
def no_others() -> None:
    """End the threads of limiters that tests before this file have never closed."""
    gc.collect()


def run(program: str, *arguments: str, timeout_s: float = BOUND_S) -> str:
    """Return what a program writes in a process of its own, which warns of nothing but forks beside threads."""
    warnings = ("-W", "default", "-W", "ignore:This process:DeprecationWarning")
    command = [sys.executable, *warnings, "-c", program, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    return ended.stdout


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "slidegate-loop"]


def waits(thread: int) -> bool:
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code is not threading.Event.wait.__code__:
        frame = frame.f_back
    return frame is not None


GREENLETS = """
from gevent import joinall, monkey, sleep, spawn

monkey.patch_all()

import sys

from slidegate import ConfigurationError, Limiter

limiter = Limiter.from_url(sys.argv[1], deadline="10s")


def ask():
    answers = []
    for _ in range(5):
        try:
            answers.append(limiter.sync.hit("user:1", "50/hour").allowed)
        except ConfigurationError:
            answers.append(None)
        sleep(0.001)
    return answers


answers = [answer for job in joinall([spawn(ask) for _ in range(20)]) for answer in job.value]
print(answers.count(True), answers.count(False), answers.count(None) > 0)
"""


@pytest.mark.parametrize("kind", ["memory", "lmdb", pytest.param("redis", marks=needs_redis)])
def test_greenlets_share_what_needs_no_event_loop(kind: str, url: str) -> None:
    pytest.importorskip("gevent")
    said = run(GREENLETS, url)
    assert said == "50 50 False\n" if kind != "redis" else said.endswith("True\n"), said


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_no_thread_starts_for_a_store_that_needs_none(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_runner, "Thread", None)
    limiter = Limiter.from_url(url)
    assert limiter.sync.hit("user:1", "5/minute")
    limiter.sync.close()


@pytest.mark.parametrize("how", ["closed", "closed on another loop", "gone"])
def test_a_limiter_keeps_its_thread_until_it_is_closed_or_gone(how: str) -> None:
    limiters = [Limiter(SlowStore()), Limiter(SlowStore())]
    for _ in range(2):
        for limiter in limiters:
            assert limiter.sync.hit("user:1", "5/minute")
        assert len(threads()) == 2
    del limiter
    for left in (1, 0):
        last = limiters.pop()
        for _ in range(2):
            if how == "closed":
                last.sync.close()
            elif how == "closed on another loop":
                asyncio.run(last.close())
        del last
        gc.collect()
        until(lambda: len(threads()) == left, "the thread ends")  # noqa: B023


def test_where_no_thread_can_start_the_store_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    limiter = Limiter(SlowStore())
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        with pytest.raises(StoreUnavailable, match="can't start new thread"):
            limiter.sync.hit("user:1", "5/minute")
    assert limiter.sync.hit("user:1", "5/minute"), "the next call tries again"
    limiter.sync.close()


FORKED = """
import gc, os, signal, sys, threading, time
from slidegate import Limiter
limiter, other = Limiter.from_url(sys.argv[1], deadline="20s", on_error="deny"), Limiter()
# The second of two calls at once waits, on the loop of the limiter.
call, call_other = (one.limited("1/20ms", key="calls", wait="20s")(lambda: True) for one in (limiter, other))
def answers(who):
    began_s = time.monotonic()
    assert limiter.sync.hit(who, "9/hour") and call() and call()
    admitted = sum(bool(limiter.sync.hit("everybody", "200/hour")) for _ in range(20))
    os.write(1, f"{admitted}\\n".encode())  # a whole line: parent and child write at once
    assert time.monotonic() - began_s < 20, "the store was late"
call_other(), call_other()
for parents in range(3):  # each child is the parent of the next one
    answers("before")
    worker = limiter.engine.rows.worker
    child = os.fork()
    assert (limiter.engine.rows.worker == worker) is bool(child), "a child is another worker"
    if child:
        answers(f"parent {os.getpid()}")
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        answers(f"parent {os.getpid()} without its child")
        limiter.sync.close()
        sys.exit(ended)
    signal.alarm(60)
    answers(f"child {os.getpid()}")
    gc.collect()  # nothing of its parent, which goes on using it
limiter.sync.close()
assert "slidegate-loop" not in [thread.name for thread in threading.enumerate()], "no limiter uses it in this child"
"""


@FORKS
@pytest.mark.parametrize("kind", ["memory", "lmdb", AT_REDIS])
def test_a_loop_that_was_used_before_a_fork_serves_the_parent_and_a_new_one_the_child(url: str) -> None:
    admitted = [int(line) for line in run(FORKED, url, timeout_s=4 * BOUND_S).split()]
    assert len(admitted) == 12
    assert sum(admitted) == 200 or url.startswith("memory"), "the bound holds over all of them"


COUNTING = """
import logging, os, signal, sys, threading
from slidegate import Limiter
from slidegate.events import Event
logging.disable()
# A child may fail to open LMDB (docs/guides/without_asgi.md); it gets the answer of `on_error`, and never hangs.
limiter, ended = Limiter.from_url(sys.argv[1], deadline="60s", on_error="allow"), threading.Event()
def count():
    while not ended.is_set():
        limiter.sync.hit("user:1", "1000000/hour", 3)
        limiter.engine.emit(Event("banned", "more"))
        limiter.observe(lambda event: None).remove()
threads = [threading.Thread(target=count) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(10):
    child = os.fork()
    if not child:
        signal.alarm(60)
        limiter.observe(lambda event: os.write(1, b"received\\n") if event.message == "in the child" else None)
        limiter.engine.emit(Event("banned", "in the child"))
        os._exit(not limiter.sync.hit("user:2", "1000/hour"))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
ended.set()
for thread in threads:
    thread.join()
limiter.sync.close()
"""


@FORKS
@pytest.mark.parametrize("kind", ["memory", pytest.param("lmdb", marks=pytest.mark.all), AT_REDIS])
def test_a_child_forked_beside_busy_threads_is_answered_and_observes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("COVERAGE_PROCESS")]:
        monkeypatch.delenv(name)  # a child may wait for ever for the lock of what measures coverage
    assert run(COUNTING, url, timeout_s=10 * BOUND_S) == "received\n0\n" * 10


PROGRAM = f"""
import asyncio, atexit, os, sys, threading
from contextlib import suppress
sys.path[:0] = [{str(ROOT)!r}, {str(TESTED)!r}]
from slidegate import Limiter
from slidegate.core import StoreUnavailable
from slidegate.limiter import sync_runner
from tests.remote_stores import SlowStore

class Hanging(SlowStore):
    async def peek(self, checks, subjects=(), deadline_s=0):
        await asyncio.Event().wait()

def hit():
    assert limiter.sync.hit("user:1", "90/minute")

def peek():
    with suppress(StoreUnavailable):
        limiter.sync.peek("user:1", "5/minute")

url, last = sys.argv[1:]
limiter = Limiter.from_url(url, deadline="60s", on_error="deny") if url else Limiter(Hanging(), deadline="60s")
hit()
exec(last)
print("over", flush=True)
"""


LAST = {
    "nobody closed it": "",
    "waits": "threading.Thread(target=peek, daemon=True).start()",
    "at exit": "atexit.register(hit)",
    "thread": "threading.Thread(target=hit).start()",
}
CHILDREN = """
import types
app = sys.modules["app"] = types.ModuleType("app")
app.limiter = limiter  # it is collected after the modules of the library
for number in range(4):
    hit()
    if not (child := os.fork()):
        number % 2 or hit()
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
hit()
"""


@pytest.mark.parametrize("last", LAST.values(), ids=LAST)
def test_the_interpreter_ends_though_the_limiter_is_open(last: str) -> None:
    assert run(PROGRAM, "", last) == "over\n"


@pytest.mark.parametrize(
    "last", ["", pytest.param(CHILDREN, marks=[FORKS, pytest.mark.all])], ids=["alone", "children"]
)
@pytest.mark.parametrize("kind", ["memory", "lmdb", AT_REDIS])
def test_a_process_ends_without_a_warning_though_its_store_is_open(url: str, last: str) -> None:
    """A child that ends takes nothing from its parent."""
    assert run(PROGRAM, url, last) == "over\n"


@pytest.mark.parametrize("error", [KeyboardInterrupt, ArithmeticError, TimeoutError])
@pytest.mark.parametrize("method", ["hit", "peek"])
def test_a_question_is_cancelled_when_its_caller_leaves(method: str, error: type[BaseException]) -> None:
    started, cancelled = threading.Event(), threading.Event()

    class Hanging(SlowStore):
        async def hit(self, checks: Any, subjects: Any = (), deadline_s: float = 0, **line: Any) -> Decision:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            raise AssertionError

        peek = hit

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise error

    def send_signal() -> None:
        assert started.wait(BOUND_S)
        # Not before: a TimeoutError that comes while asyncio wakes the loop is dropped, like one of its socket.
        until(lambda: waits(main), "the caller waits")
        signal.pthread_kill(main, signal.SIGUSR1)

    main, before = threading.get_ident(), signal.signal(signal.SIGUSR1, interrupt)
    sender = threading.Thread(target=send_signal)
    sender.start()
    try:
        with Limiter(Hanging(), deadline="60s").sync as limiter, pytest.raises(error):
            getattr(limiter, method)("user:1", "2/hour")
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)
    assert cancelled.wait(BOUND_S)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_runner_whose_loop_was_ended_by_what_it_ran_is_replaced() -> None:
    store = SlowStore(FakeClock())
    with Limiter(store, deadline="60s").sync as limiter:
        store.error = SystemExit(3)
        with pytest.raises(SystemExit):
            limiter.peek("user:1", "5/minute")
        store.error = None
        assert limiter.hit("user:1", "5/minute")  # while the loop of before is still being closed
    until(lambda: not threads(), "the threads end")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_call_that_waits_for_a_loop_ends_with_the_loop() -> None:
    is_blocked, goes_on = threading.Event(), threading.Event()

    class Ending(SlowStore):
        async def later(self, question: Any, *arguments: Any) -> Any:
            if question != self.inner.peek:
                await asyncio.Event().wait()
            is_blocked.set()
            assert goes_on.wait(BOUND_S)
            raise SystemExit

    errors: dict[str, type[BaseException]] = {}

    def call(method: str) -> None:
        try:
            getattr(limiter, method)("user:1", "5/minute")
        except BaseException as error:
            errors[method] = type(error)

    limiter = Limiter(Ending(FakeClock()), deadline="60s").sync
    ending, waiting = (threading.Thread(target=call, args=(name,), daemon=True) for name in ("peek", "hit"))
    ending.start()
    assert is_blocked.wait(BOUND_S)
    waiting.start()
    until(lambda: waits(waiting.ident or 0), "the call waits")
    goes_on.set()
    for thread in (ending, waiting):
        thread.join(BOUND_S / 2)  # a call that is lost ends later, by its deadline
    assert errors == {"peek": SystemExit, "hit": StoreUnavailable}
    limiter.close()
    until(lambda: not threads(), "the loops have ended")


@pytest.mark.filterwarnings("error")
def test_work_whose_loop_ends_before_its_first_step_leaves_no_warning() -> None:
    ended: list[str] = []

    async def work() -> None:
        ended.append("work")

    async def begins_more() -> None:
        in_background(work())

    async def begin() -> None:
        in_background(begins_more())

    with asyncio.Runner() as runner:
        runner.run(begin())
    gc.collect()
    assert ended == []
