"""A child of fork finds no lock in the hands of a thread that it does not have, and begins anew where it has to."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from slidegate.stores import forks
from slidegate.stores.forks import begin_anew_in_child, hold_over_fork

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

PATIENCE_S = 30.0


def forked(answers: Callable[[], int]) -> int:
    """Fork a child, and return the number that it answers with."""
    child = os.fork()
    if not child:
        os._exit(answers())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_child_can_take_a_lock_that_another_thread_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where that thread names another one before it lets go."""
    monkeypatch.setattr(forks, "PATIENCE_S", PATIENCE_S)
    first, lock, another = (threading.Lock() for _ in range(3))
    for each in (first, lock):
        hold_over_fork(each)
    taken = threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            until_s = time.monotonic() + PATIENCE_S
            while not first.locked() and time.monotonic() < until_s:  # until the other thread is about to fork
                time.sleep(0.001)
            hold_over_fork(another)

    holder = threading.Thread(target=hold)
    holder.start()
    assert taken.wait(PATIENCE_S)
    started_s = time.monotonic()
    assert forked(lambda: sum(each.acquire(blocking=False) for each in (first, lock, another))) == 3
    holder.join()
    assert all(each.acquire(blocking=False) for each in (first, lock, another)), "the parent has let them go"
    assert time.monotonic() - started_s < PATIENCE_S, "nobody waited in vain"


FORKING_AT_ONCE = """
import os, threading, time
from slidegate.stores import forks

forks.PATIENCE_S = 30.0


class OwnedLock:
    def __init__(self):
        self._lock = threading.Lock()
        self._owner = self.by_others = 0

    def acquire(self, blocking=True, timeout=-1):
        taken = self._lock.acquire(blocking, timeout)
        if taken:
            self._owner = threading.get_ident()
        return taken

    def release(self):
        self.by_others += self._owner != threading.get_ident()
        self._lock.release()


def fork():
    child = os.fork()
    if not child:
        os._exit(0 if all(each.acquire(False) for each in (lock, last)) else 1)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


lock, last, codes = OwnedLock(), threading.Lock(), []
for each in (lock, last):
    forks.hold_over_fork(each)
threads = [threading.Thread(target=fork) for _ in range(2)]
with last:
    for thread in threads:
        thread.start()
        while not lock._lock.locked():
            time.sleep(0.001)
        time.sleep(0.1)  # the second one comes as far as it can
for thread in threads:
    thread.join()
print(codes, lock.by_others, lock._lock.locked(), last.locked())
"""


def test_threads_that_fork_at_once_let_go_of_no_lock_that_another_has_taken() -> None:
    """The second begins while the first waits for the last lock and has all others.

    In a process of its own: there is none of the handlers that have a thread wait before it comes to ours.
    """
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING_AT_ONCE]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("[0, 0] 0 False False\n", "")


def test_what_belongs_to_the_parent_alone_begins_anew_in_a_child_as_long_as_it_lives() -> None:
    class Owner:
        """Something of the parent's."""

        def __init__(self) -> None:
            self.begun = 0
            begin_anew_in_child(self.begin_anew)

        def begin_anew(self) -> None:
            self.begun += 1

    kept, gone = Owner(), Owner()
    del gone
    assert (forked(lambda: kept.begun), kept.begun) == (1, 0)


def test_a_thread_that_forks_with_a_lock_in_its_hands_does_not_wait_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "PATIENCE_S", 0.01)
    lock, other = threading.Lock(), threading.Lock()
    for each in (lock, other):
        hold_over_fork(each)
    with lock:
        assert forked(lambda: 10 * lock.locked() + other.locked()) == 10
    assert not lock.locked()
    assert not other.locked()
