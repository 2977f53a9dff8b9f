"""The event loop for threads: when it starts and ends, and callers that leave before their answer came."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from slidegate import ConfigurationError, Decision, Limiter, MemoryStore, StoreUnavailable
from slidegate.limiter.sync import loop_thread
from slidegate.limiter.sync.loop_thread import LOOP_THREAD
from slidegate.stores.lmdb import LmdbStore

from ..remote_stores import SlowStore

PATIENCE_S = 30.0
"""Seconds that only a hang takes."""
ROOT = Path(__file__).resolve().parents[3]


def threads() -> list[threading.Thread]:
    """Return the threads with loops that run."""
    return [thread for thread in threading.enumerate() if thread.name == "slidegate-loop"]


def until(state: Callable[[], object]) -> None:
    """Come back when a state is reached."""
    until_s = time.monotonic() + PATIENCE_S
    while not state():
        assert time.monotonic() < until_s, "the state was not reached"
        time.sleep(0.001)


def waits(thread: int) -> bool:
    """Tell whether a thread waits for an event."""
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code is not threading.Event.wait.__code__:
        frame = frame.f_back
    return frame is not None


# -- the life of the thread ----------------------------------------------------------------------------------------


def test_no_thread_starts_before_a_store_needs_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, lmdb, slow = Limiter(MemoryStore()), Limiter(LmdbStore(tmp_path)), Limiter(SlowStore())
    for limiter in (memory, lmdb):
        assert limiter.sync.hit("user:1", "5/minute")
    assert not threads()
    assert slow.sync.hit("user:1", "5/minute")
    assert len(threads()) == 1
    slow.sync.close()
    assert not threads()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", None)
        memory.sync.close()
        lmdb.sync.close()


def test_limiters_share_the_thread_until_the_last_is_closed() -> None:
    one, two = Limiter(SlowStore()), Limiter(SlowStore())
    for limiter in (one, two):
        assert limiter.sync.hit("user:1", "5/minute")
    (thread,) = threads()
    one.sync.close()
    assert threads() == [thread]
    two.sync.close()
    two.sync.close()
    assert not threads()
    with Limiter(SlowStore()).sync as three:
        assert three.hit("user:1", "5/minute"), "a later one begins anew"
    assert not threads()


def test_a_close_on_another_loop_lets_go_of_the_thread() -> None:
    limiter = Limiter(SlowStore())
    limiter.sync.hit("user:1", "5/minute")
    asyncio.run(limiter.close())
    until(lambda: not threads())


def test_a_limiter_that_nobody_closed_does_not_hold_the_thread_once_it_is_gone() -> None:
    lost, limiter = Limiter(SlowStore()), Limiter(SlowStore())
    for each in (lost, limiter):
        each.sync.hit("user:1", "5/minute")
    del lost, each
    gc.collect()
    limiter.sync.close()
    assert not threads()


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


PROGRAM = """
import asyncio, sys, threading
from contextlib import suppress
sys.path[:0] = [{root!r}, {source!r}]
from slidegate import Limiter, StoreUnavailable
from tests.limiter.remote_stores import SlowStore

class Hanging(SlowStore):
    async def peek(self, checks, guarded=()):
        await asyncio.Event().wait()

def peek():
    with suppress(StoreUnavailable):
        limiter.sync.peek("user:1", "5/minute")

limiter = Limiter(Hanging(), deadline="60s")
assert limiter.sync.hit("user:1", "5/minute")
{last}
print("over", flush=True)
"""


@pytest.mark.parametrize(
    "last",
    [
        pytest.param("", id="nobody closed it"),
        pytest.param("threading.Thread(target=peek, daemon=True).start()", id="waits"),
        pytest.param("import atexit; atexit.register(lambda: limiter.sync.hit('user:1', '5/minute'))", id="at exit"),
        pytest.param("threading.Thread(target=lambda: limiter.sync.hit('user:1', '5/minute')).start()", id="thread"),
    ],
)
def test_the_interpreter_ends_though_nobody_closed_the_limiter(last: str) -> None:
    program = PROGRAM.format(root=str(ROOT), source=str(ROOT / "src"), last=last)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (run.returncode, run.stdout, run.stderr) == (0, "over\n", "")


# -- callers that leave --------------------------------------------------------------------------------------------


class Gated(SlowStore):
    """A store that charges, and tells when it may answer."""

    def __init__(self) -> None:
        super().__init__()
        self.charged, self.may_answer = threading.Event(), threading.Event()

    async def hit(self, checks: Sequence[Any], guarded: Sequence[Any] = ()) -> Decision:
        decision = self.inner.hit(checks, guarded)
        self.charged.set()
        await asyncio.to_thread(self.may_answer.wait, PATIENCE_S)
        return decision


class TimeIsUp(Exception):
    """Stands for what a task queue raises in a task whose time is up."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeIsUp, TimeoutError])
def test_a_thread_that_is_interrupted_while_it_waits_hands_its_units_back(error: type[BaseException]) -> None:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise error

    store, main = Gated(), threading.get_ident()
    limiter = Limiter(store, deadline="60s")

    def send_signal() -> None:
        assert store.charged.wait(PATIENCE_S)
        # Not before: a TimeoutError that comes while asyncio wakes the loop is dropped, like one of its socket.
        until(lambda: waits(main))
        signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    sender = threading.Thread(target=send_signal)
    sender.start()
    try:
        with pytest.raises(error):
            limiter.sync.hit("user:1", "2/hour")
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)
    assert limiter.sync.peek("user:1", "2/hour").remaining == 0, "the unit is charged until the store has answered"
    store.may_answer.set()
    until(lambda: limiter.sync.peek("user:1", "2/hour").remaining == 1)
    limiter.sync.close()


def test_units_are_handed_back_though_the_interpreter_ends_at_once() -> None:
    program = f"""
import os, signal, sys, threading
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "src")!r}]
from slidegate import Limiter
from tests.limiter.sync.test_loop_thread import Gated

class Telling(Gated):
    async def refund(self, decision):
        answer = await super().refund(decision)
        print("handed back", answer, flush=True)
        return answer

store = Telling()
limiter = Limiter(store, deadline="60s")

def interrupt():
    store.charged.wait()
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt).start()
try:
    limiter.sync.hit("user:1", "2/hour")
except KeyboardInterrupt:
    print("interrupted", flush=True)
    threading.Timer(0.2, store.may_answer.set).start()
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (run.returncode, run.stdout, run.stderr) == (0, "interrupted\nhanded back True\n", "")


def test_a_question_without_units_is_cancelled_when_its_caller_leaves() -> None:
    cancelled = threading.Event()

    class Slow(SlowStore):
        async def peek(self, checks: Sequence[Any], guarded: Sequence[Any] = ()) -> Decision:
            signal.pthread_kill(main, signal.SIGUSR1)
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            raise AssertionError

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise TimeIsUp

    main, before = threading.get_ident(), signal.signal(signal.SIGUSR1, interrupt)
    try:
        with Limiter(Slow(), deadline="60s").sync as limiter, pytest.raises(TimeIsUp):
            limiter.peek("user:1", "2/hour")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert cancelled.wait(PATIENCE_S)


def test_threads_that_are_none_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_thread, "get_native_id", os.getpid)
    with pytest.raises(ConfigurationError, match="gevent"):
        Limiter(SlowStore()).sync.hit("user:1", "5/minute")
    until(lambda: not threads())
    assert not LOOP_THREAD.runs
