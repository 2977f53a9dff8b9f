"""The event loop for threads: when it starts and ends, and callers that leave before their answer came."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from slidegate import Decision, Limiter, MemoryStore
from slidegate.core import StoreUnavailable
from slidegate.limiter import portal
from slidegate.stores.lmdb import LmdbStore

from ..redis_servers import AT_REDIS, BOUND_S, until
from ..remote_stores import SlowStore

ROOT = Path(__file__).resolve().parents[2]
FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(autouse=True)
def no_others() -> None:
    """End the portals of limiters that tests before this one have never closed."""
    gc.collect()


def run(program: str, *arguments: str, timeout_s: float = BOUND_S) -> str:
    """Return what a program writes in a process of its own, which warns of nothing but forks beside threads."""
    warnings = ("-W", "default", "-W", "ignore:This process:DeprecationWarning")
    command = [sys.executable, *warnings, "-c", program, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "slidegate-loop"]


def waits(thread: int) -> bool:
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code is not threading.Event.wait.__code__:
        frame = frame.f_back
    return frame is not None


def test_no_thread_starts_for_a_store_that_needs_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portal, "Thread", None)
    for limiter in (Limiter(MemoryStore()), Limiter(LmdbStore(tmp_path))):
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
# The second of two calls at once waits, in the portal.
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
def test_a_portal_that_was_used_before_a_fork_serves_the_parent_and_a_new_one_the_child(url: str) -> None:
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
        limiter.observe(lambda event: os.write(1, b"heard\\n") if event.message == "in the child" else None)
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
def test_a_child_that_is_forked_while_other_threads_count_and_emit_gets_answers_and_events(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("COVERAGE_PROCESS")]:
        monkeypatch.delenv(name)  # a child may wait for ever for the lock of what measures coverage
    assert run(COUNTING, url, timeout_s=10 * BOUND_S) == "heard\n0\n" * 10


PROGRAM = f"""
import asyncio, atexit, os, sys, threading
from contextlib import suppress
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "src")!r}]
from slidegate import Limiter
from slidegate.core import StoreUnavailable
from slidegate.limiter import portal
from tests.remote_stores import SlowStore

class Hanging(SlowStore):
    async def peek(self, checks, subjects=()):
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
def test_the_interpreter_ends_though_nobody_closed_the_limiter(last: str) -> None:
    assert run(PROGRAM, "", last) == "over\n"


@pytest.mark.parametrize("last", ["", pytest.param(CHILDREN, marks=FORKS)], ids=["alone", "children"])
@pytest.mark.parametrize("kind", ["memory", "lmdb", AT_REDIS])
def test_a_process_ends_without_a_warning_though_nobody_closed_its_store(url: str, last: str) -> None:
    """A child that ends takes nothing from its parent."""
    assert run(PROGRAM, url, last) == "over\n"


@pytest.mark.parametrize("error", [KeyboardInterrupt, ArithmeticError, TimeoutError])
@pytest.mark.parametrize("method", ["hit", "peek"])
def test_a_question_is_cancelled_when_its_caller_leaves(method: str, error: type[BaseException]) -> None:
    started, cancelled = threading.Event(), threading.Event()

    class Hanging(SlowStore):
        async def hit(self, checks: Sequence[Any], subjects: Sequence[Any] = (), **line: Any) -> Decision:
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
def test_a_portal_whose_loop_was_ended_by_what_it_ran_is_replaced() -> None:
    class Exiting(SlowStore):
        async def peek(self, checks: Any, subjects: Any = ()) -> Any:
            raise SystemExit(3)

    with Limiter(Exiting(), deadline="60s").sync as limiter:
        with pytest.raises(SystemExit):
            limiter.peek("user:1", "5/minute")
        until(lambda: not threads(), "the thread ends")
        assert limiter.hit("user:1", "5/minute")
