"""A child of fork waits for no thread that it does not have, and starts again where it has to."""

import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import anyio
import pytest

from slidegate import MemoryStore, Quota
from slidegate import _watcher as watcher
from slidegate.core import Bucket, Concurrency, parse_address
from slidegate.stores.forks import ForkHook
from slidegate.stores.memory import store as memory
from slidegate.testing import FakeClock

from ..contract.store_contract import POLICY, bucket
from ..files.test_watcher import KINDS, Followed
from .forked import actor, outcome

PATIENCE_S = 30
DAY_US = 86_400_000_000
HELD = Bucket("held", (Concurrency(1),))
A_MONTH = Bucket("a month", (Quota("1000000/month"),))


def forked(answer: Callable[[], object]) -> None:
    """Run something in a thread of a forked child, which has to end well and in time, and holds none of the locks."""

    def work(_: int) -> None:
        signal.alarm(PATIENCE_S)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(answer).result()

    assert outcome(*actor(work))[1] == 0


def test_what_belongs_to_the_parent_alone_starts_again_in_a_child_as_long_as_it_lives() -> None:
    begun: list[str] = []
    kept, gone = ForkHook(lambda: begun.append("kept")), ForkHook(lambda: begun.append("gone"))
    del gone

    def answer() -> None:
        assert begun == ["kept"]

    forked(answer)
    assert (begun, kept is not None) == ([], True)


def fork_at_every_line(act: Callable[[], object], where: Path, check: Callable[[], object]) -> None:
    """Do something, and check in a child that is forked at every line of a file, or of the files of a folder."""
    seen = set[object]()

    def trace(frame: Any, event: str, arg: object) -> object:
        file = Path(frame.f_code.co_filename)
        if where not in (file, file.parent):
            return None
        if event == "line" and (frame.f_code, frame.f_lineno) not in seen:
            seen.add((frame.f_code, frame.f_lineno))
            sys.settrace(None)
            forked(check)
            sys.settrace(trace)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    assert len(seen) > 10


NETWORK, ADDRESS = "192.0.2.0/24", parse_address("192.0.2.7")
HOURLY = bucket("3/hour")


class Scene:
    """A memory store, whose moves are interrupted at every line by a fork."""

    def __init__(self) -> None:
        self.clock = FakeClock(DAY_US)
        self.store = MemoryStore(clock=self.clock, max_keys=100)
        self.questions = [((HOURLY, key, 1), (A_MONTH, key, 1)) for key in ("ann", "bob")]
        for checks in self.questions:
            assert self.store.hit(checks)
        self.questions.append(((HOURLY, "eve", 1), (Bucket("new", HOURLY.limits), "eve", 1)))
        ask, later = partial(self.store.hit, self.questions[-1]), partial(self.sweep, 6, "40d")
        self.moves: list[Callable[[], object]] = [ask, self.sweep, self.strike, self.lift, self.store.reset_all, later]

    def sweep(self, times: int = 2, pause: str = "1h") -> None:
        for _ in range(times):
            self.clock.advance(pause)
            for _ in range(5):
                self.store.tidy(self.clock())

    def strike(self) -> None:
        assert self.store.hit(((HELD, "ann", 1),))
        assert self.store.bans.strike(POLICY, "bob", 3, "")

    def lift(self) -> None:
        for key in (NETWORK, "bob"):
            self.store.bans.ban(key, DAY_US, "", "ann")
            self.store.bans.unban(key, "ann")

    def check(self) -> None:
        store, bans = self.store, self.store.bans
        bans.strike(POLICY, "zoe", 1, "")
        fresh = ((HOURLY, "fresh", 1), (A_MONTH, "fresh", 1), (HELD, "fresh", 0))
        assert [bool(store.hit(fresh)) for _ in range(4)] == [True] * 3 + [False]
        banned = {ban.key for page in bans.pages() for ban in page}
        assert [store.hit(checks).ban is not None for checks in self.questions] == [False, "bob" in banned, False]
        for refuses in (False, True):
            (bans.ban(NETWORK, DAY_US, "", "ann") if refuses else bans.unban(NETWORK, "ann"))
            assert (store.hit((), (ADDRESS,)).ban is not None) is refuses
        assert store.permits_held() == 0
        monthly = ((A_MONTH, "ann", 1),)
        left = store.hit(monthly).remaining
        self.sweep()
        assert store.hit(monthly).remaining == left - 1
        self.sweep(6, "40d")
        assert (store.key_count(), store.bans.count()) == (0, 0)


@pytest.mark.interpreted("lines of compiled code are not traced")
@pytest.mark.parametrize("number", [0, *(pytest.param(number, marks=pytest.mark.all) for number in range(1, 6))])
def test_a_child_goes_on_at_whatever_line_another_thread_of_its_parent_was(number: int) -> None:
    """Locks are in the hands of the thread that forks, which the child does not go on with."""
    scene = Scene()
    for move in scene.moves[:number]:
        move()
    fork_at_every_line(scene.moves[number], Path(memory.__file__).parent, scene.check)


@pytest.mark.all
@pytest.mark.interpreted("lines of compiled code are not traced")
@pytest.mark.parametrize("kind", KINDS)
def test_a_child_reads_a_file_amid_a_parent_s_look(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "now_s", watcher.now_s)  # the file replaces it
    followed = Followed(tmp_path, kind)
    followed.follow()
    followed.put(followed.content(2), "renamed")
    anyio.run(followed.look, followed.app)
    with monkeypatch.context() as patched:
        patched.setattr(watcher, "Thread", thread := Mock())
        anyio.run(followed.look, followed.app)

    async def check() -> None:
        await followed.visit(followed.app)
        assert await followed.at_work(1, 2) == [2]

    def look() -> None:
        for started in thread.call_args_list:  # a configuration has a list
            started.kwargs["target"]()

    fork_at_every_line(look, Path(watcher.__file__), lambda: anyio.run(check))
