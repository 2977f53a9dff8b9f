"""Signal handlers, which run in the middle of what a thread does: some ask a store, and some raise an error."""

import fcntl
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import pytest

from slidegate.core import StoreTimeout
from slidegate.stores import forks
from slidegate.stores.lmdb import LmdbStore, batching, gate

from ...contract.store_contract import CHECKS, HOUR_US
from ...hurry import PATIENCE_S
from ...redis_servers import until
from ...signals import interrupt, is_interrupted
from ..conftest import Opened
from ..forked import fork
from .processes import SMALL, open_files


def is_gate_free(store: Any, users: int = fcntl.LOCK_SH) -> bool:
    """Return whether another process could go behind the gate, and become a user; or the only one."""
    for name, operation in (("gate", fcntl.LOCK_EX), ("users", users)):
        with (store._env.path / name).open() as file:
            try:
                fcntl.flock(file, operation | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
    return True


@pytest.mark.parametrize("asked", ["store", "elsewhere"])
@pytest.mark.parametrize("is_reserved", [False, True])
def test_a_handler_that_asks_within_a_turn_gets_none_and_ends_none(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, asked: str, is_reserved: bool
) -> None:
    """Whichever store it asks, and although an event loop has reserved the next turn."""
    monkeypatch.setattr(batching, "WAIT_S", 0.02)
    monkeypatch.setattr(forks, "_RESERVED_FROM_S", 0.0)
    monkeypatch.setattr(forks, "_RESERVED_UNTIL_S", 60.0)
    within = list[bool]()

    def clock() -> int:
        if within:
            signal.raise_signal(signal.SIGUSR1)
        return 10**15

    def ask(*_: object) -> None:
        within.clear()
        if is_reserved:
            another.submit(gate.THREAD_LOCK.reserve).result()
        with pytest.raises(StoreTimeout):
            stores[asked].hit(CHECKS, (), 0.02)
        with pytest.raises(StoreTimeout):
            another.submit(store.hit, CHECKS, (), 0.02).result()
        assert not is_gate_free(store)

    stores = {name: opened(name, clock=clock) for name in ("store", "elsewhere")}
    store, before = stores["store"], signal.signal(signal.SIGUSR1, ask)
    within.append(True)
    with ThreadPoolExecutor(1) as another:
        assert store.hit(CHECKS).remaining == 4
        assert another.submit(store.hit, CHECKS).result().remaining == 3
    signal.signal(signal.SIGUSR1, before)
    assert is_gate_free(store)


ACTS: dict[str, Callable[[Any], object]] = {
    "hit": lambda store: store.hit(CHECKS),
    "ban": lambda store: store.bans.ban("user:eve", HOUR_US, "why", "ann"),
    "open again": lambda store: gate.THREAD_LOCK.run(PATIENCE_S, store._env.close_files) or store.hit(CHECKS),
    "open and close": lambda store: LmdbStore(store._env.path.with_name("elsewhere"), **SMALL).close(),
}


def answered(store: Any) -> list[Any]:
    """Return what another thread is answered; not one of a pool, which would wait for ever for a lock that is left."""
    answers = list[Any]()
    thread = threading.Thread(target=lambda: answers.extend(act(store) for act in ACTS.values()), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    return answers


@pytest.mark.parametrize("name", ACTS)
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # interrupted before its first line
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_wherever_a_handler_raises_the_next_is_answered(store: Any, name: str) -> None:
    """By any thread, and by another process."""
    if name != "hit" and sys.version_info[:2] == (3, 14):
        pytest.skip("CPython 3.14 itself leaves a file open where a signal handler raises at the begin of a `with`")
    numbers = count()
    while is_interrupted(partial(ACTS[name], store), next(numbers)):
        assert is_gate_free(store)
        assert len(answered(store)) == len(ACTS)
    assert next(numbers) > 20
    store.close()
    until(lambda: is_gate_free(store, fcntl.LOCK_EX), "nothing of it is left")


HANDLERS: dict[str, Callable[[Callable[[], Any], list[Any]], object]] = {
    "opens and closes": lambda opened, _: opened().close(),
    "opens": lambda opened, others: others.append(opened()),
    "closes": lambda _, others: others.pop().close(),
    "closes and opens": lambda opened, others: (others.pop().close(), others.append(opened())),
}


@pytest.mark.parametrize("does", HANDLERS)
@pytest.mark.parametrize("place", ["store", "elsewhere"])
@pytest.mark.parametrize("name", ["hit", "open and close", pytest.param("ban", marks=pytest.mark.all)])
def test_wherever_a_handler_opens_or_closes_stores_all_are_answered_and_closed(
    store: Any, monkeypatch: pytest.MonkeyPatch, name: str, place: str, does: str
) -> None:
    """It waits for nothing that its own thread has, and no file is closed while a store uses it, or left open."""
    monkeypatch.setattr(gate, "WAIT_S", 0.0)
    path, numbers = store._env.path.with_name(place), count()
    opened = partial(LmdbStore, path, **SMALL)

    def play() -> None:
        is_there = True
        while is_there:
            others = [opened() for _ in range(does.startswith("closes"))]
            handle = partial(HANDLERS[does], opened, others)
            is_there = is_interrupted(partial(ACTS[name], store), next(numbers), handle)
            for each in (*others, store):
                each.hit(CHECKS)
            for each in others:
                each.close()
            until(lambda: not open_files(path.with_name("elsewhere")), "all are closed")
        ends.append(next(numbers))

    ends = list[int]()
    player = threading.Thread(target=play, daemon=True)
    player.start()
    player.join(PATIENCE_S)
    assert ends
    assert ends[0] > 20


def test_wherever_a_handler_asks_another_store_it_gives_away_no_turn(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an event loop takes one which has reserved it."""
    monkeypatch.setattr(batching, "WAIT_S", 0.0)
    monkeypatch.setattr(forks, "_RESERVED_FROM_S", 0.0)

    def is_free() -> bool:
        is_acquired = gate.THREAD_LOCK.lock.acquire(blocking=False)
        if is_acquired:
            gate.THREAD_LOCK.lock.release()
        return is_acquired

    def ask() -> None:
        was_free = another.submit(lambda: gate.THREAD_LOCK.reserve() or is_free()).result()
        with suppress(StoreTimeout):
            elsewhere.hit(CHECKS, (), 0.0)
        assert another.submit(is_free).result() == was_free

    store, elsewhere, numbers = opened(), opened("elsewhere"), count()
    with ThreadPoolExecutor(1) as another:
        while is_interrupted(partial(store.hit, CHECKS), next(numbers), ask):
            pass
    assert next(numbers) > 20


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_handler_that_raises_while_a_fork_waits_for_a_turn_leaves_no_lock_locked(store: Any) -> None:
    before, is_over = signal.signal(signal.SIGALRM, lambda *_: interrupt()), threading.Event()
    with ThreadPoolExecutor(1) as another:
        another.submit(gate.THREAD_LOCK.run, PATIENCE_S, is_over.wait, PATIENCE_S)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        pid = fork()
        if not pid:
            os._exit(0)
        is_over.set()
    signal.signal(signal.SIGALRM, before)
    os.waitpid(pid, 0)
    assert len(answered(store)) == len(ACTS)
