"""Opening an LMDB environment: files that are damaged, foreign, too new, or not ours to write."""

import errno
import fcntl
import math
import os
import random
import re
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any
from unittest.mock import Mock

import lmdb.verify
import pytest

from slidegate import ConfigurationError, Limiter, StoreError
from slidegate.core import Bucket, Concurrency, StoreTimeout, StoreUnavailable
from slidegate.stores.lmdb import LmdbStore, environment, gate, kept, rows
from slidegate.stores.lmdb.counts import takes_space
from slidegate.stores.lmdb.gate import WAIT_S
from slidegate.stores.shared import keys_shared
from slidegate.testing import RecordingObserver

from ...contract.player import listed, settle
from ...contract.programs import HOUR_US
from ...contract.store_contract import CHECKS, QUESTIONS, SHARED_QUESTIONS
from ...hurry import at_once, hurried
from ...redis_servers import until
from ..conftest import Opened
from ..forked import actor, child, fork, fork_in_c, outcome
from .processes import SMALL, Faulty, at_call, counts_file, in_another_process, mounted, open_files, overwrite, python


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    """Return an environment with one hit, two bans, and a ban that was taken back."""
    store = LmdbStore(tmp_path / "store", **SMALL)
    store.hit(CHECKS)
    for key in ("user:eve", "192.0.2.0/24", "user:bob"):
        store.bans.ban(key, HOUR_US, "by request", "ann")
    store.bans.unban("user:bob", "ann")
    store.close()
    return tmp_path / "store"


def test_a_reader_is_answered_or_gets_an_error_of_the_store_while_files_are_closed(store: Any) -> None:
    """As it does where they, or their directory, were replaced, which it notices about once a second."""
    path, ended = store._env.path, threading.Event()

    def close_often() -> int:
        try:
            for number in range(60):
                for name in path.glob("counts-*"):
                    name.unlink(missing_ok=True)
                store._env._examine_at_s = 0.0
                for _ in range(2):
                    store.hit(((CHECKS[0][0], f"user:{number}", 1),))
            for number in range(60):
                path.rename(path.with_name(f"old{number}"))
                with suppress(OSError, StoreError):  # another thread may make the directory first
                    path.touch()
                    store._env._examine_at_s = 0.0
                    store.hit(CHECKS)
                with suppress(OSError):
                    path.unlink()
                path.mkdir(0o700, exist_ok=True)
        finally:
            ended.set()
        return 0

    def read_often() -> int:
        answered = 0
        while not ended.is_set():
            with suppress(StoreError):
                answered += store.peek(CHECKS).allowed
        return answered

    with hurried(collecting=False):
        answers = at_once(lambda thread: read_often() if thread else close_often(), threads=3)
    assert all(answers[1:])


# -- disk space, which a file takes when it is made --------------------------------------------------------------------


MIB = 1 << 20


def taken(path: Path) -> int:
    return counts_file(path).stat().st_blocks * 512


NO_SPACE = Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
ON_A_DISK = pytest.mark.skipif(not takes_space(Path(tempfile.gettempdir())), reason="files are on no disk here")


@ON_A_DISK
def test_a_file_takes_its_space_when_it_is_made_and_only_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = python("print(LmdbStore(path).hit(((asked, 'ann', 1),)).remaining)", tmp_path / "default")
    assert (said, taken(tmp_path / "default") // MIB) == ("4\n", 256)
    LmdbStore(tmp_path / "store", max_map_size=2 * MIB).close()
    assert taken(tmp_path / "store") >= 2 * MIB
    LmdbStore(tmp_path / "store", max_map_size=3 * MIB).close()
    assert taken(tmp_path / "store") >= 3 * MIB
    monkeypatch.setattr(os, "posix_fallocate", NO_SPACE)  # XFS wants the room of a whole file once more
    LmdbStore(tmp_path / "store", max_map_size=3 * MIB).close()


@ON_A_DISK
def test_a_file_without_space_is_not_made_or_stays_as_large_as_it_was(
    store_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = counts_file(store_path).stat().st_size
    says = r"No space left on device: the file has 32 MiB \(max_map_size\); free some space, or choose another path"
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", NO_SPACE)
        for name in ("store", "new"):
            with pytest.raises(ConfigurationError, match=says):
                opened(name, max_map_size=32 * MIB)
    assert counts_file(store_path).stat().st_size == size
    assert not list(store_path.with_name("new").glob("counts-*"))
    assert opened().hit(CHECKS).remaining == 3
    assert opened("new").hit(CHECKS).remaining == 4


@pytest.mark.all
def test_where_files_are_in_memory_the_file_is_sparse_and_nobody_is_killed(tmp_path: Path) -> None:
    code = """
    from pathlib import Path
    told = []
    limiter = Limiter(LmdbStore(path), deadline="60s", on_error="allow", observers=[told.append])
    (counts,) = Path(path).glob("counts-*")
    assert counts.stat().st_blocks * 512 < 1 << 20
    reasons = {limiter.sync.hit(f"user:{number:>050}", "5/hour").reason.value for number in range(20_000)}
    assert reasons == {"ok", "unavailable"}, reasons
    print({event.kind for event in told} - {"map_full", "store_late", "store_failed", "store_error"})
    """
    mount = mounted(f"mount -t tmpfs -o size=2m none {shlex.quote(str(tmp_path))}")
    assert python(code, tmp_path / "store", before=mount) == "set()\n"


@pytest.mark.parametrize("locked", ["counts-*", "gate", "users", "."])
def test_files_of_somebody_else_are_named(store_path: Path, locked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    for directory in (store_path, *store_path.parents[:-2]):
        if directory.owner() == store_path.owner() and directory != Path("/tmp"):
            directory.chmod(0o755)
    for file in store_path.iterdir():
        file.chmod(0o644)
        if locked == ".":
            file.unlink()
    shut = store_path / name_in(store_path, locked)
    shut.chmod(0o500 if locked == "." else 0o000)

    def as_nobody(writing: int) -> None:
        if os.geteuid() == 0:
            os.setgid(65_534)
            os.setuid(65_534)
        with pytest.raises(ConfigurationError) as caught:
            LmdbStore(store_path, **SMALL)
        os.write(writing, str(caught.value).encode())

    message = outcome(*actor(as_nobody))[0].decode()
    shut.chmod(0o700)
    assert str(store_path) in message
    assert "Permission denied" in message
    assert message.endswith("; run all workers as the user that it belongs to, or choose another path")


NO_STORE = """
    try:
        LmdbStore(path, max_map_size=1 << 24)
    except ConfigurationError as error:
        print(error)
"""


@pytest.mark.parametrize("is_there", [True, False])
def test_a_file_system_that_is_read_only_is_an_error_that_says_so(tmp_path: Path, is_there: bool) -> None:
    if is_there:
        LmdbStore(tmp_path / "lmdb", **SMALL).close()
    store_path = shlex.quote(str(tmp_path))
    before = mounted(f"mount --bind {store_path} {store_path} && mount -o remount,bind,ro {store_path}")
    said = python(NO_STORE, tmp_path / "lmdb", before=before)
    assert "Read-only file system; mount its file system for writing, or choose another path" in said


NAMES = ("gate", "users", "kept.mdb", "counts-*")


def name_in(store_path: Path, pattern: str) -> str:
    """Return the name of our file in a directory, or of the directory itself."""
    return "." if pattern == "." else next(store_path.glob(pattern)).name


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("victim")])
def test_what_is_no_file_is_refused_by_what_it_is_and_hangs_nobody(store_path: Path, make: Callable[..., Any]) -> None:
    refused = []
    (store_path / "victim").write_bytes(b"precious")
    for number, pattern in enumerate(NAMES):
        path = shutil.copytree(store_path, store_path.with_name(str(number)))
        name = path / name_in(path, pattern)
        name.unlink()
        make(name)
        shown = stat.filemode(name.lstat().st_mode)
        refused += [f"lmdb: {name} is not a regular file ({shown}); remove it, or choose another path"] * 2
    code = """
        for number in range(4):
            for create in (True, False):
                try:
                    print(LmdbStore(f"{path}/{number}", create=create))
                except (ConfigurationError, StoreUnavailable) as error:
                    print(error)
    """
    assert python(code, store_path.parent).splitlines() == refused
    assert all((store_path.with_name(str(number)) / "victim").read_bytes() == b"precious" for number in range(4))


@pytest.mark.parametrize("name", [".", *NAMES])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_what_others_may_write_is_refused(store_path: Path, opened: Opened, name: str, mode: int) -> None:
    shared = (store_path / name_in(store_path, name)).resolve()
    shared.chmod(shared.stat().st_mode | mode)
    with pytest.raises(ConfigurationError, match=f"other users may write to {shared}, and .*; chmod go-w {shared}"):
        opened()
    subprocess.run(["chmod", "go-w", shared], check=True)
    opened()


def test_nobody_else_may_read_the_files(store_path: Path) -> None:
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in store_path.iterdir()}
    assert modes == dict.fromkeys((name_in(store_path, name) for name in NAMES), 0o600)
    assert stat.S_IMODE(store_path.stat().st_mode) == 0o700


FAULTS = [error for error in vars(lmdb).values() if isinstance(error, type) and issubclass(error, lmdb.Error)]


@pytest.mark.parametrize("ask", [pytest.param(ask, id=name) for name, ask in (QUESTIONS | SHARED_QUESTIONS).items()])
def test_after_any_failed_call_the_next_is_answered(store: Any, ask: Callable[[Any], Any], rng: random.Random) -> None:
    failures: list[str] = []
    held = store.hit(((Bucket("held", (Concurrency(1),)), "ann", 1),))  # so that there is one to renew
    for fails_at in (*range(1, 5), *rng.sample(range(5, 40), 8)):
        store.hit(CHECKS)
        # From some of LMDB's own errors a store recovers by itself.
        fault = partial(OSError, 5) if fails_at == 1 else rng.choice(FAULTS)
        counts, inner = store._env.counts, store._env.counts.lmdb
        error = fault("as a fault")
        counts.lmdb = Faulty(inner, error, at_call(fails_at))
        try:
            ask(store)
        except StoreUnavailable as raised:
            failures.append(str(raised))
        counts.lmdb = inner
        assert store.hit(((CHECKS[0][0], "user:free", 1),)), (fails_at, error)
        store.reset_all()
    assert failures
    assert all("as a fault" in failure for failure in failures), failures
    assert held


def test_without_room_taken_ahead_the_map_writes_nothing(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slidegate.stores.lmdb.counts.CAN_TAKE", False)
    monkeypatch.delattr(os, "posix_fallocate")
    store = opened()
    limited = CHECKS[0][0]
    assert all(store.hit(((limited, f"user:{number}", 1),)) for number in range(1_000))
    assert counts_file(store._env.path).stat().st_size < 1 << 20
    in_another_process(store, lambda own: own.hit(CHECKS))
    assert store.hit(CHECKS).remaining == 3


@pytest.mark.parametrize("missing", [".", "counts-*", "gate"])
@pytest.mark.parametrize("made_by", ["the worker", "a tool"])
def test_missing_files_are_made_again_and_reported(
    store_path: Path, store: Any, opened: Opened, observer: RecordingObserver, missing: str, made_by: str
) -> None:
    store.bans.ban("198.51.100.0/24", None, "by request", "ann")
    if missing == ".":  # a copy of the ban may be under way
        until(lambda: shutil.rmtree(store_path, ignore_errors=True) or not store_path.exists(), "it is deleted")
    else:
        (store_path / name_in(store_path, missing)).unlink()
    if made_by == "a tool":
        in_another_process(store, lambda own: own.close() is None)
    store._env._examine_at_s = 0
    is_banned = store.hit(CHECKS, ((4, 0xC6336407),)).ban is not None
    assert is_banned == (missing != "."), "kept.mdb has the ban"
    first, second = [store.hit(CHECKS).remaining for _ in range(2)]
    assert (opened().hit(CHECKS).remaining, second) == (first - 2, first - 1)
    assert counts_file(store_path)
    is_new = first == 4 - (not is_banned)  # else it has the unit that was spent before
    assert observer.kinds.count("counts_restarted") == is_new
    if missing != "gate":
        assert is_new
        assert f"files in {store_path} were deleted or replaced: windows start again" in observer.events[-1].message


def test_files_that_cannot_be_looked_at_for_a_moment_are_used_on(store_path: Path) -> None:
    """As by a permission that is lost: that is no sign that they were deleted, and other processes use them on."""

    def work(writing: int) -> None:
        own, told, user = LmdbStore(store_path, **SMALL), RecordingObserver(), os.geteuid()
        own.observe(told)
        for mode, seen_by in ((0o000, user or 65_534), (0o700, user)):
            store_path.chmod(mode)
            os.seteuid(seen_by)
            own._env._examine_at_s = 0.0
            own.hit(CHECKS)
            os.seteuid(user)
        os.write(writing, f"{own.hit(CHECKS).remaining} {told.kinds}".encode())  # type: ignore[union-attr]

    assert outcome(*actor(work)) == (b"1 []", 0)


@pytest.mark.parametrize(
    ("broken", "said"), [(".", "is a file"), ("counts-*", "is not a regular file"), ("users", "is not a regular file")]
)
def test_files_that_become_unusable_are_an_error(store_path: Path, store: Any, broken: str, said: str) -> None:
    if broken == ".":
        shutil.rmtree(store_path)
        store_path.write_bytes(b"")
    else:
        file = store_path / name_in(store_path, broken)
        file.unlink()
        os.mkfifo(file)
    store._env._examine_at_s = 0
    are_open = []
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match=said):
            store.hit(CHECKS)
        are_open.append(open_files(store_path))
    assert are_open[0] == are_open[2]


# -- damage, and errors that are none ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "damage"), [(0, bytes(4_096)), (16, b"\xff" * 144), (0, b"noise" * 32), (8_192, b"noise" * 32_000)]
)
@pytest.mark.parametrize("ask", ["hit", "peek", "pages"])
def test_a_file_that_is_damaged_in_use_is_replaced_with_its_bans(
    store_path: Path, store: Any, observer: RecordingObserver, at: int, damage: bytes, ask: str
) -> None:
    """One of its users reports that, and each has at most two errors of the store."""
    overwrite(counts_file(store_path), *((page * 4_096 + at, damage) for page in range(2)))
    for question in (ask, ask, "hit", "hit"):
        with suppress(StoreUnavailable):
            QUESTIONS[question](store)
    assert store.hit(CHECKS).remaining < 5
    assert observer.kinds == ["counts_restarted"]
    assert "was damaged (" in observer.events[0].message
    assert sorted(ban.key for ban in listed(store)) == ["192.0.2.0/24", "user:eve"]
    in_another_process(store, lambda own: len(listed(own)) == 2)


@pytest.mark.parametrize("in_use", [False, True])
def test_whatever_page_is_damaged_all_is_answered_again(store_path: Path, rng: random.Random, in_use: bool) -> None:
    """And no file stays open."""
    counts = counts_file(store_path)
    whole, questions = counts.read_bytes(), (QUESTIONS | SHARED_QUESTIONS).values()
    for page in range(2, 40):
        counts.write_bytes(whole)
        damage = partial(overwrite, counts, (page * 4_096, rng.randbytes(4_096)))
        if not in_use:
            damage()
        store = LmdbStore(store_path, **SMALL)
        if in_use:
            damage()
        for ask in (*questions, *questions):  # of one bad transaction it is unknown whether a page is damaged
            with suppress(StoreUnavailable):
                ask(store)
        for ask in questions:
            ask(store)
        store.close()
        assert not [name for name in open_files(store_path) if "counts-" in name]


def test_a_copy_beside_the_file_of_running_workers_is_not_used_in_its_place(store_path: Path, store: Any) -> None:
    file = counts_file(store_path)
    shutil.copy(file, store_path / f"{file.stem} (copy).mdb")  # which sorts before it
    refused = python(
        """
        try:
            LmdbStore(path)
        except ConfigurationError as error:
            print(error)
        """,
        store_path,
        "",
    )
    assert re.search(r"is in use with layout counts-.* \(copy\).mdb by another version", refused)


@pytest.mark.parametrize("content", [None, b"", b"x" * 4_096, b"not a database\n", bytes(4_096), bytes(100_000)])
def test_a_foreign_file_and_one_of_another_gate_are_replaced(
    store_path: Path, opened: Opened, observer: RecordingObserver, content: bytes | None
) -> None:
    if content is None:
        (store_path / "gate").rename(store_path / "old")  # somebody may still be behind it
    else:
        counts_file(store_path).write_bytes(content)
    store = opened()
    assert observer.kinds == ([] if content == b"" else ["counts_restarted"])
    assert content is not None or "was used behind another gate" in observer.events[0].message
    assert store.hit(CHECKS).remaining == 4
    assert len(listed(store)) == 2


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if not issubclass(fault, rows.DAMAGE)])
def test_an_error_of_one_worker_keeps_counts(store: Any, observer: RecordingObserver, fault: type[Exception]) -> None:
    for _ in range(2):
        store.hit(CHECKS)
    counts, inner = store._env.counts, store._env.counts.lmdb
    counts.lmdb = Faulty(inner, fault("as a fault"), at_call(2))
    with pytest.raises(StoreUnavailable, match=r"as a fault|read"):
        store.hit(CHECKS)
    counts.lmdb = inner
    in_another_process(store, lambda own: own.hit(CHECKS))
    assert store.hit(CHECKS).remaining == 1
    assert "counts_restarted" not in observer.kinds


@pytest.mark.parametrize(("waits_s", "restarts"), [(590, 1), (610, 0)])
def test_of_two_bad_transactions_the_second_is_damage_if_it_comes_within_ten_minutes(
    store: Any, observer: RecordingObserver, monkeypatch: pytest.MonkeyPatch, waits_s: int, restarts: int
) -> None:
    """Else an accident of weeks ago would cost the whole host its counts at the next one."""
    ahead_s = 0
    monkeypatch.setattr(environment, "time", Mock(monotonic=lambda: time.monotonic() + ahead_s))
    for _ in range(2):
        counts, inner = store._env.counts, store._env.counts.lmdb
        counts.lmdb = Faulty(inner, lmdb.BadTxnError("as a fault"), "begin".__eq__)
        with pytest.raises(StoreUnavailable, match="as a fault"):
            store.hit(CHECKS)
        counts.lmdb = inner
        ahead_s += waits_s
        store.hit(CHECKS)
    assert observer.kinds == ["counts_restarted"] * restarts


def test_an_error_that_threads_meet_at_once_keeps_counts(
    store: Any, observer: RecordingObserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.hit(CHECKS)
    counts, failure = store._env.counts, store._env.failure
    counts.lmdb = Faulty(counts.lmdb, lmdb.BadTxnError("as a fault"), "begin".__eq__)

    def after_others(error: Exception) -> StoreUnavailable:
        monkeypatch.setattr(store._env, "failure", failure)
        for _ in range(2):
            with suppress(StoreUnavailable):
                store.hit(CHECKS)
        return failure(error)  # type: ignore[no-any-return]

    monkeypatch.setattr(store._env, "failure", after_others)
    with pytest.raises(StoreUnavailable, match="as a fault"):
        store.hit(CHECKS)
    store.hit(CHECKS)
    assert observer.kinds == []


def test_a_worker_without_memory_keeps_the_file(store_path: Path, opened: Opened, observer: RecordingObserver) -> None:
    LmdbStore(store_path, max_map_size=1 << 30).close()
    store = opened()
    most = "import resource; resource.setrlimit(resource.RLIMIT_AS, (700 << 20, 700 << 20))\n"
    assert "cannot be opened" in python(most + dedent(NO_STORE), store_path)
    assert store.hit(CHECKS).remaining == 3
    assert observer.kinds == []


def test_commands_whose_files_were_replaced_are_not_acknowledged(store_path: Path, store: Any) -> None:
    """The rows would be in a file that nobody else has."""
    counts_file(store_path).unlink()
    in_another_process(store, lambda own: own.hit(CHECKS))
    store._env._examine_at_s = math.inf  # it looks about once a second
    with pytest.raises(StoreUnavailable, match="were replaced"):
        store.bans.ban("user:zoe", None, "by request", "ann")
    assert store.bans.ban("user:zoe", None, "by request", "ann")
    in_another_process(store, lambda own: len(listed(own)) == 3)


@pytest.mark.parametrize("layout", [2, None])
@pytest.mark.parametrize("on_error", ["local", "allow", "deny"])
def test_files_of_another_program_or_version_are_left_alone(tmp_path: Path, layout: int | None, on_error: Any) -> None:
    """Whatever happens when a store fails: this ends the start, and says how the bans of layout 2 are taken along."""
    file = tmp_path / "data.mdb"
    if layout:
        shutil.copy(Path(__file__).parents[1] / "data" / "data.mdb", file)
        refused = r"contains data.mdb of .* an earlier slidegate; .*`limiter.export_bans\(\)` with the"
    else:
        with lmdb.open(str(tmp_path), map_size=1 << 20) as other, other.begin(write=True) as txn:
            txn.put(b"theirs", b"1")
        refused = r"contains data.mdb of another program .*; choose another path"
    before = file.read_bytes()
    with pytest.raises(ConfigurationError, match=refused):
        Limiter.from_url(f"lmdb://{tmp_path}", on_error=on_error)
    assert file.read_bytes() == before


# -- workers that stand still behind the gate --------------------------------------------------------------------------


async def test_a_start_on_a_loop_waits_for_no_stopped_worker(store_path: Path, opened: Opened) -> None:
    def begin() -> object:
        own = LmdbStore(store_path, **SMALL)
        return own, own._env.gate.enter()

    with child(begin, signal.SIGSTOP) as pid:
        began_s = time.monotonic()
        store = opened()
        assert time.monotonic() - began_s < WAIT_S / 2
        limiter = Limiter(store, on_error="local", deadline="20ms")
        assert [(await limiter.hit("user:zoe", "1/hour")).allowed for _ in range(2)] == [True, False]
        os.kill(pid, signal.SIGKILL)
    assert (await settle(store.hit(CHECKS))).remaining == 3


def test_a_child_opens_its_killed_parents_gate(store_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "FORK_S", 0.02)

    def begin() -> object:
        own = LmdbStore(store_path, **SMALL)
        own._env.gate.enter()
        if not fork():
            signal.alarm(10)
            signal.pause()
        return own

    with child(begin, signal.SIGKILL):
        assert store.hit(CHECKS, (), 5.0).remaining == 3  # less than for which the child lives


def test_a_child_closes_files_of_its_parent(store_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    for thread in threading.enumerate():
        if thread.name == "slidegate-lmdb":
            thread.join()  # it has a descriptor for a moment, and the store that made the place has started one
    monkeypatch.setattr(kept, "in_background", lambda work: None)
    store = opened()
    store.bans.ban("user:zoe", None, "by request", "ann")

    def work(writing: int) -> None:
        os.write(writing, f"{open_files(store_path)}".encode())
        assert store.hit(CHECKS).remaining == 3
        assert store.bans.ban("user:yan", None, "by request", "ann")

    assert outcome(*actor(work)) == (b"[]", 0)
    assert store.hit(CHECKS).remaining == 2
    assert len(listed(store)) == 4


def test_a_child_tells_no_events_of_its_parent(store: Any, observer: RecordingObserver) -> None:
    store._env.kept.tell(keys_shared(1))

    def work(writing: int) -> None:
        store.observe(told := RecordingObserver())
        store.hit(CHECKS)
        os.write(writing, f"{told.kinds}".encode())

    assert outcome(*actor(work)) == (b"[]", 0)
    store.hit(CHECKS)
    assert observer.kinds == ["keys_shared"]


@pytest.mark.parametrize("way", [fork, fork_in_c])
def test_a_child_waits_at_the_gate_and_takes_its_own_permits(
    store: Any, monkeypatch: pytest.MonkeyPatch, way: Callable[[], int]
) -> None:
    monkeypatch.setattr(gate, "FORK_S", 0.02)
    permits = ((Bucket("held", (Concurrency(2),)), "ann", 1),)
    mine = store.hit(permits)

    def work(writing: int) -> None:
        signal.alarm(60)
        with pytest.raises(StoreTimeout):
            store.hit(permits, (), 0.05)
        os.write(writing, b"waits")
        assert [store.permits_held(), *map(bool, (store.hit(permits), store.hit(permits)))] == [0, True, False]

    assert store._env.gate.enter()
    pid, reading = actor(work, way)
    assert os.read(reading, 5) == b"waits"
    fcntl.flock(store._env.gate.file, fcntl.LOCK_UN)  # as a transaction does at its end
    assert outcome(pid, reading) == (b"", 0)
    assert not store.hit(permits), "those of the child are taken until their lease ends"
    assert store.refund(mine.begin_refund()) is True
