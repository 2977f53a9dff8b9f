"""Opening an LMDB environment: files that are damaged, foreign, too new, or not ours to write."""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import lmdb.verify
import pytest

from slidegate import BanPolicy, Limiter, StoreError
from slidegate.core import Bucket, ConfigurationError, StoreTimeout, StoreUnavailable, parse_limits
from slidegate.stores.lmdb import LmdbStore
from slidegate.stores.lmdb import opening as lmdb_opening
from slidegate.stores.lmdb.checking import check_directory, check_file_system, file_system
from slidegate.stores.lmdb.layout import SCHEMA_VERSION
from slidegate.testing import FakeClock, RecordingObserver

from ...hurry import at_once, hurried
from .scenes import actor, outcome
from .test_store import child, gate_held, in_another_process, python

HOUR_US = 3_600_000_000
ASKED = ((Bucket("rule", parse_limits("5/hour")), "user:ann", 1),)
SMALL: dict[str, Any] = {"map_size": 1 << 20}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return an environment with one hit, a ban, and a ban that was taken back."""
    path = tmp_path / "lmdb"
    store = LmdbStore(path, **SMALL)
    store.hit(ASKED)
    for key in ("user:eve", "192.0.2.0/24"):
        store.bans.ban(key, HOUR_US, "by request", "ann")
    store.bans.ban("user:bob", None, "by request", "ann")
    store.bans.unban("user:bob", "ann")
    store.close()
    return path


made: list[LmdbStore] = []


def opened(path: Path, **options: Any) -> tuple[Any, RecordingObserver]:
    """Return a store, which is closed at the end of a test, and what it tells."""
    heard = RecordingObserver()
    made.append(LmdbStore(path, **{**SMALL, **options}))
    made[-1].observe(heard)
    return made[-1], heard


@pytest.fixture(autouse=True)
def _close_all() -> Iterator[None]:
    yield
    while made:
        made.pop().close()


def overwrite(data: Path, *pieces: tuple[int, bytes]) -> None:
    with data.open("r+b") as file:
        for at, piece in pieces:
            file.seek(at)
            file.write(piece)


def all_but_the_heads_and_the_records_of_bans(data: Path) -> None:
    content = data.read_bytes()
    pages = [at for at in range(2 * 4_096, len(content), 4_096) if b"\xb5SG3" not in content[at : at + 4_096]]
    overwrite(data, *((at, b"\xff" * 4_096) for at in pages))


def second_page_damaged(data: Path) -> None:
    overwrite(data, (4_096, b"x" * 64))


def heads_damaged(data: Path) -> None:
    overwrite(data, *((page * 4_096 + 16, b"\xff" * 144) for page in range(2)))


def heads_replaced(data: Path) -> None:
    overwrite(data, *((page * 4_096, random.Random(2).randbytes(160)) for page in range(2)))


def zeroed(data: Path) -> None:
    overwrite(data, (0, bytes(8_192)))


@pytest.mark.parametrize("damage", [zeroed, second_page_damaged, all_but_the_heads_and_the_records_of_bans])
def test_a_damaged_file_is_set_aside_and_its_bans_are_rescued(place: Path, damage: Callable[[Path], None]) -> None:
    damage(place / "data.mdb")
    store, heard = opened(place)
    assert heard.kinds[:2] == ["store_set_aside", "bans_rescued"]
    kept = Path(str(heard.events[0].details["path"]))
    assert re.fullmatch(r"data\.mdb\.corrupt-\d{8}T\d{6}\.\d+Z", kept.name)
    assert kept.exists()
    assert sorted(ban.key for ban in store.bans.active()) == ["192.0.2.0/24", "user:eve"]
    assert all(0 < (ban.until_us or 0) - store.shared_stats.time() <= HOUR_US for ban in store.bans.active())
    assert store.hit(ASKED).remaining == 4


@pytest.mark.parametrize("content", [b"", b"x" * 4_096, b"not a database\n", bytes(4_096), bytes(100_000), None])
def test_what_is_no_data_file_is_set_aside(place: Path, content: bytes | None) -> None:
    data = place / "data.mdb"
    data.write_bytes(data.read_bytes()[: 8 * 4_096] if content is None else content)  # None: it is cut off
    store, heard = opened(place)
    assert content is not None or "it has 32768 bytes" in heard.events[0].message
    assert heard.kinds[:1] == ([] if content == b"" else ["store_set_aside"])
    assert store.hit(ASKED).remaining == 4


def test_the_environment_of_another_program_is_left_alone(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "lmdb"), map_size=1 << 20) as other, other.begin(write=True) as txn:
        txn.put(b"theirs", b"1")
    before = (tmp_path / "lmdb" / "data.mdb").read_bytes()
    with pytest.raises(ConfigurationError, match="contains other data; choose a directory for slidegate alone"):
        LmdbStore(tmp_path / "lmdb", **SMALL)
    with lmdb.open(str(tmp_path / "lmdb")) as other, other.begin() as txn:
        assert txn.get(b"theirs") == b"1"
    assert (tmp_path / "lmdb" / "data.mdb").read_bytes()[8_192 : len(before)] == before[8_192:]


@pytest.mark.parametrize("marks", [(16, 4_112), (24,)])
def test_another_data_format_of_lmdb_is_left_alone(place: Path, marks: tuple[int, ...]) -> None:
    data = place / "data.mdb"
    content = bytearray(data.read_bytes())
    mark = content[16:20]
    for at in marks:
        content[at : at + 5] = mark + b"\x03"
    if 16 not in marks:
        content[16:20] = bytes(4)
    data.write_bytes(content)
    with pytest.raises(ConfigurationError, match="has LMDB's data format 3; expected 1"):
        LmdbStore(place, **SMALL)
    assert data.read_bytes() == content


def rewrite_version(place: Path, version: int) -> None:
    with lmdb.open(str(place), max_dbs=16) as env:
        meta = env.open_db(b"meta")
        with env.begin(write=True) as txn:
            txn.put(b"schema", bytes([version]), db=meta)


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(
    ("version", "way_out"),
    [(1, r"export_bans\(\)` with the version that wrote it"), (3, r"export_bans\(\)` with"), (99, "upgrade slidegate")],
)
def test_another_layout_ends_the_start_and_is_left_alone(
    place: Path, version: int, way_out: str, read_only: bool
) -> None:
    rewrite_version(place, version)
    before = (place / "data.mdb").read_bytes()
    error = StoreUnavailable if read_only else ConfigurationError
    message = f"layout version {version}, and this slidegate reads only {SCHEMA_VERSION}; .*{way_out}"
    with pytest.raises(error, match=message):
        LmdbStore(place, read_only=read_only, **SMALL)
    assert sorted(os.listdir(place)) == ["data.mdb", "lock.mdb"]
    assert (place / "data.mdb").read_bytes() == before
    rewrite_version(place, SCHEMA_VERSION)
    store, _ = opened(place)
    assert store.hit(ASKED).remaining == 3


def test_who_reads_while_another_thread_closes_the_files_is_answered_or_told_by_an_error_of_the_store(
    tmp_path: Path,
) -> None:
    """As it does where they were taken away, which it notices about once a second."""
    path, clock, ended = tmp_path / "lmdb", FakeClock(), threading.Event()
    store, _ = opened(path, clock=clock, map_size=1 << 16)

    def close_often() -> int:
        for number in range(60):
            (path / "data.mdb").unlink(missing_ok=True)
            clock.advance("2s")
            for _ in range(2):
                store.hit(((ASKED[0][0], f"user:{number}", 1),))
        ended.set()
        return 0

    def read_often() -> int:
        answered = 0
        while not ended.is_set():
            with suppress(StoreError):
                answered += store.peek(ASKED).allowed
        return answered

    try:
        with hurried(collecting=False):
            answers = at_once(lambda thread: read_often() if thread else close_often(), threads=3)
    finally:
        ended.set()
    assert all(answers[1:])


def test_after_a_crash_every_page_is_looked_at_too_for_damage_may_have_been_its_cause(place: Path) -> None:
    with child(lambda: LmdbStore(place, **SMALL).hit(ASKED)):
        overwrite(place / "data.mdb", (2 * 4_096, b"\xff" * 12 * 4_096))
    store, heard = opened(place)
    assert heard.kinds == ["store_set_aside", "bans_rescued"]
    assert store.hit(ASKED).remaining == 4


def test_full_slots_of_readers_are_no_damage(place: Path) -> None:
    """Those who would read have no answer until there is room again, and nothing of the file is lost."""
    (place / "lock.mdb").unlink()  # it would have as many slots as before

    def read(times: int) -> object:
        other = lmdb.open(str(place), max_readers=5)
        return other, [other.begin() for _ in range(times)]

    with child(lambda: read(4)):
        store, heard = opened(place)  # for which one slot is enough
        with child(lambda: read(1)):
            assert_no_reader_is_answered(store)
            assert store.hit(ASKED).remaining == 3
        assert store.peek(ASKED).remaining == 2
        assert len(store.bans.active()) == 2
        assert heard.kinds == []


def assert_no_reader_is_answered(store: LmdbStore) -> None:
    asks = (lambda: store.peek(ASKED), store.stats, store.bans.active, lambda: store.bans.find(["user:eve"]))
    for ask in (*asks, *asks):
        with pytest.raises(StoreUnavailable, match="READERS_FULL"):
            ask()


def test_a_file_that_grows_whenever_a_reader_has_mapped_it_whole_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process makes it larger, and fills it, each time that the reader has let others write again."""
    path, grown, flock = tmp_path / "lmdb", list[int](), fcntl.flock
    store, heard = opened(path, map_size=1 << 16)
    store.hit(ASKED)
    code = """
        store, number = LmdbStore(path, map_size=1 << 16), 0
        while store.stats().bytes_used <= int(sys.argv[2]):
            store.hit(((asked, f"user:{sys.argv[2]}-{number:>040}", 1),))
            number += 1
    """

    def grow() -> None:
        grown.append((path / "data.mdb").stat().st_size)
        python(code, path, grown[-1])

    def let_others_write(file: int, operation: int) -> None:
        flock(file, operation)
        if operation == fcntl.LOCK_UN and len(grown) < 4:
            grow()

    grow()
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", let_others_write)
        assert store.peek(ASKED).remaining == 3
    assert grown == sorted(grown)
    assert store.hit(ASKED).remaining == 3
    assert set(heard.kinds) <= {"map_grown"}


@pytest.mark.all
@pytest.mark.parametrize(
    ("seed", "flips"),
    [
        *((seed, 40) for seed in range(6)),
        *(pytest.param(seed, flips, marks=pytest.mark.deep) for seed in range(60) for flips in (3, 2_000)),
    ],
)
def test_whatever_bytes_are_damaged_the_next_worker_starts_and_counts(tmp_path: Path, seed: int, flips: int) -> None:
    path, chance = tmp_path / "lmdb", random.Random(seed)
    store = LmdbStore(path, **SMALL)
    asked = ASKED[0][0]
    for number in range(400):
        store.hit(((asked, f"user:{number}", 1),))
    for number in range(100):
        store.bans.ban(f"user:{number}", HOUR_US, "by request", "ann")
    used = store.stats().bytes_used
    store.close()
    data = path / "data.mdb"
    content = bytearray(data.read_bytes())
    for _ in range(flips):
        content[chance.randrange(used)] ^= 1 << chance.randrange(8)
    data.write_bytes(content)
    code = """
        for turn in range(3):
            store = LmdbStore(path, map_size=1 << 20)
            for number in range(450):
                for again in range(3):
                    with suppress(StoreUnavailable):  # once: then the file is set aside
                        store.hit(((asked, f"user:{number}", 1),))
                        break
                else:
                    raise SystemExit("it does not recover")
            store.bans.dump()
            store.close()
    """
    print(f"seed {seed}, flips {flips}")  # noqa: T201 - pytest shows it where a test fails
    python(code, path)


def test_a_process_with_the_same_number_in_another_container_is_an_error_that_says_so(place: Path) -> None:
    mine = os.getpid()

    def lock() -> object:
        file = (place / "lock.mdb").open("r+b")
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, mine)  # as LMDB says that this number is alive
        return file

    refused = pytest.raises(ConfigurationError, match=f"another process with the id {mine}, in another cont")
    with child(lock), refused:
        LmdbStore(place, **SMALL)
    opened(place)


@pytest.mark.parametrize("deleted", [("lock.mdb",), ("data.mdb",), ("lock.mdb", "data.mdb")])
def test_who_starts_beside_a_stopped_writer_whose_files_were_deleted_does_not_hang(
    place: Path, deleted: tuple[str, ...]
) -> None:
    def begin() -> object:
        own = LmdbStore(place, **SMALL)
        return own, own._env.begin()

    with child(begin, signal.SIGSTOP):
        for name in deleted:
            (place / name).unlink()
        code = """
            opening.PATIENCE_S = 0.1
            try:
                print(LmdbStore(path, map_size=1 << 20).stats().keys)
            except StoreTimeout:
                print("stopped")
        """
        assert python(code, place) == ("0\n" if "data.mdb" in deleted else "stopped\n")


def test_a_lock_file_that_is_deleted_while_workers_run_lets_nobody_write_over_them(place: Path) -> None:
    store, _ = opened(place)
    (place / "lock.mdb").unlink()
    in_another_process(store, lambda own: own.hit(ASKED))  # takes over what was counted, in a file of its own
    assert store.hit(ASKED).remaining == 3
    assert store.hit(ASKED).remaining == 2
    assert len(store.bans.active()) == 2


def test_a_disk_without_room_is_an_error_at_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ConfigurationError, match="No space left on device; free some space, or choose another path"):
        LmdbStore(tmp_path / "lmdb", **SMALL)


def as_nobody(act: Callable[[], object]) -> str:
    """Do something as a user who owns nothing, and return the error that it ends with."""

    def work(writing: int) -> None:
        if os.geteuid() == 0:
            os.setgid(65_534)
            os.setuid(65_534)
        try:
            act()
        except ConfigurationError as error:
            os.write(writing, str(error).encode())

    return outcome(*actor(work))[0].decode()


@pytest.mark.parametrize("locked", ["data.mdb", "."])
def test_files_of_somebody_else_are_an_error_that_names_them(
    place: Path, locked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    for directory in (place, *place.parents[:-2]):
        if directory.owner() == place.owner() and directory != Path("/tmp"):
            directory.chmod(0o755)
    for file in place.iterdir():
        file.chmod(0o644)
    (place / locked).chmod(0o000 if locked != "." else 0o500)
    if locked == ".":
        for file in place.iterdir():
            file.unlink()
    message = as_nobody(lambda: LmdbStore(place, **SMALL))
    (place / locked).chmod(0o700)
    assert str(place) in message
    assert "Permission denied" in message
    assert re.search(r"belongs to user \d+ \(.{10}\), and this process is user \d+: give it to that user", message)


@pytest.mark.parametrize("there", [True, False])
def test_a_file_system_that_is_read_only_is_an_error_that_says_so(tmp_path: Path, there: bool) -> None:
    code = f"""
from slidegate.stores.lmdb import LmdbStore
LmdbStore({str(tmp_path / "lmdb")!r}, map_size=1 << 20)
"""
    if there:
        LmdbStore(tmp_path / "lmdb", **SMALL).close()
    place = shlex.quote(str(tmp_path))
    mount = f"mount --bind {place} {place} && mount -o remount,bind,ro {place}"
    apart = ["unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",)), "sh", "-c"]
    if not shutil.which("unshare") or subprocess.run([*apart, mount], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    run = shlex.join([sys.executable, "-c", code])
    ended = subprocess.run([*apart, f"{mount} && {run}"], capture_output=True, text=True, timeout=60)
    assert "Read-only file system; mount its file system for writing, or choose another path" in ended.stderr


def bound_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


STRANGE: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a directory": Path.mkdir,
    "a socket": bound_socket,
    "a symbolic link": lambda path: path.symlink_to("victim"),
    "a device": lambda path: os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5)),
}


@pytest.mark.parametrize("name", ["data.mdb", "lock.mdb"])
@pytest.mark.parametrize("what", STRANGE)
def test_what_is_no_file_is_refused_by_what_it_is_and_hangs_nobody(place: Path, name: str, what: str) -> None:
    (place / name).unlink()
    (place / "victim").write_bytes(b"precious")
    try:
        STRANGE[what](place / name)
    except PermissionError:
        pytest.skip("no device can be made here")
    code = """
        for read_only in (False, True):
            try:
                print(LmdbStore(path, map_size=1 << 20, read_only=read_only))
            except (ConfigurationError, StoreUnavailable) as error:
                print(error)
    """
    refused = f"lmdb: {place / name} is {what}; remove it, or choose another path"
    assert python(code, place).splitlines() == [refused] * 2
    assert (place / "victim").read_bytes() == b"precious"


@pytest.mark.parametrize("name", [".", "data.mdb", "lock.mdb"])
@pytest.mark.parametrize(
    ("mode", "who", "remedy"), [(0o020, f"group {os.getegid()}", "g-w"), (0o002, "every user", "o-w")]
)
def test_what_others_may_write_to_is_refused_with_what_to_do(
    place: Path, name: str, mode: int, who: str, remedy: str
) -> None:
    shared = (place / name).resolve()
    shared.chmod(shared.stat().st_mode | mode)
    with pytest.raises(ConfigurationError, match=f"{who} may write to {shared}, and .*; chmod {remedy} {shared}"):
        LmdbStore(place, **SMALL)
    subprocess.run(["chmod", remedy, shared], check=True)
    opened(place)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives directories away")
def test_a_directory_of_somebody_else_is_refused_for_its_owner_could_cut_the_file_off(place: Path) -> None:
    os.chown(place, 65_534, 65_534)
    message = f"{place} belongs to user 65534 .drwx------., and this process is user 0: give it to that user, run as"
    with pytest.raises(ConfigurationError, match=message):
        LmdbStore(place, **SMALL)
    LmdbStore(place, read_only=True, **SMALL).close()  # who only looks on trusts the workers


def test_nobody_else_may_read_the_files(place: Path) -> None:
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in place.iterdir()}
    assert modes == {"data.mdb": 0o600, "lock.mdb": 0o600}
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


def mounts(root: str = "ext4", lib: str = "xfs") -> list[str]:
    return [
        f"22 1 259:2 / / rw,relatime shared:1 - {root} /dev/root rw",
        f"36 22 0:32 / /var/lib rw,relatime shared:2 - {lib} server:/export rw",
        "37 22 0:33 / /var/lib/app\\040data rw,relatime - tmpfs tmpfs rw",
    ]


def test_the_file_system_is_that_of_the_longest_mount_point() -> None:
    known = {"/var/lib/app": "xfs", "/var/library": "ext4", "/var/lib/app data/x": "tmpfs"}
    assert {path: file_system(Path(path), mounts()) for path in known} == known
    assert file_system(Path("/var/lib/app"), []) == ""


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "9p"])
def test_a_file_system_over_a_network_is_refused_by_its_name(kind: str) -> None:
    with pytest.raises(ConfigurationError, match=f"/var/lib/app is on {kind}, which does not share locks"):
        check_file_system(Path("/var/lib/app"), mounts(lib=kind))


@pytest.mark.parametrize("kind", ["overlay", "fuseblk"])
def test_a_doubtful_file_system_is_warned_about(kind: str) -> None:
    assert f"is on {kind}" in check_file_system(Path("/etc"), mounts(root=kind))
    assert check_file_system(Path("/var/lib/app"), mounts(root=kind)) == ""


def test_a_directory_is_made_where_its_parent_is_there_and_nothing_else_is_in_its_place(tmp_path: Path) -> None:
    check_directory(tmp_path / "new")
    assert (tmp_path / "new").is_dir()
    (tmp_path / "file").write_bytes(b"")
    for path, said in (("file", "is a file; expected a directory"), ("missing/new", "does not exist; create it, or")):
        with pytest.raises(ConfigurationError, match=said):
            check_directory(tmp_path / path)


def test_who_opens_while_another_process_stands_still_gives_up(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb_opening, "PATIENCE_S", 0.01)
    store, _ = opened(place)
    with gate_held(store):
        store.close()
        with pytest.raises(StoreTimeout, match=r"another process has held .* for 0.01 s; is it stopped\?"):
            LmdbStore(place, **SMALL)


POLICY = BanPolicy("3/minute", "10m")
QUESTIONS: dict[str, Callable[[LmdbStore], object]] = {
    "hit": lambda store: store.hit(ASKED),
    "peek": lambda store: store.peek(ASKED),
    "charge": lambda store: store.charge(ASKED),
    "reset": lambda store: store.reset("user:ann"),
    "reset_all": lambda store: store.reset_all(),
    "inspect": lambda store: store.inspect("user:ann", [ASKED[0][0]]),
    "renew_permits": lambda store: store.renew_permits(),
    "stats": lambda store: store.stats(),
    "find": lambda store: store.bans.find(["user:ann"]),
    "strike": lambda store: store.bans.strike(POLICY, "user:ann", 1, "why"),
    "ban": lambda store: store.bans.ban("user:ann", None, "why", "me"),
    "unban": lambda store: store.bans.unban("user:ann", "me"),
    "active": lambda store: store.bans.active(),
    "dump": lambda store: store.bans.dump(),
    "load": lambda store: store.bans.load([{"slidegate": "bans", "version": 4}]),
    "count": lambda store: store.bans.count(),
    "write": lambda store: store.shared_stats.write(b"worker00", []),
    "read": lambda store: store.shared_stats.read("5s", 0, 1),
}


FAULTS = [error for error in vars(lmdb).values() if isinstance(error, type) and issubclass(error, lmdb.Error)]


class Faulty:
    """LMDB's objects, of which the call of one number fails."""

    def __init__(self, inner: Any, fails_at: int, error: Exception) -> None:
        self.__dict__.update(inner=inner, left=[fails_at], error=error)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        return self._counted(found, name) if callable(found) else found

    def __enter__(self) -> Faulty:
        return self

    def __exit__(self, *raised: object) -> None:
        self.inner.close()

    def __iter__(self) -> Any:
        return iter(self.inner)

    def _counted(self, call: Any, name: str) -> Any:
        def counted(*given: Any, **named: Any) -> Any:
            self.left[0] -= name not in ("abort", "close", "info", "readers")
            if not self.left[0]:
                self.left[0] = -1
                if name == "commit":
                    self.inner.abort()  # as LMDB does
                raise self.error
            answer = call(*given, **named)
            if not isinstance(answer, (lmdb.Transaction, lmdb.Cursor)):
                return answer
            made = Faulty(answer, 0, self.error)
            made.__dict__["left"] = self.left
            return made

        return counted


@pytest.mark.parametrize("name", QUESTIONS)
def test_whatever_call_of_lmdb_fails_the_error_is_that_of_a_store_and_the_next_question_is_answered(
    tmp_path: Path, name: str, rng: random.Random
) -> None:
    store, _ = opened(tmp_path / "lmdb")
    failures: list[str] = []
    for fails_at in (*range(1, 5), *rng.sample(range(5, 40), 8)):
        store.hit(ASKED)
        # From some of LMDB's own errors a store recovers by itself.
        fault = partial(OSError, 5) if fails_at == 1 else rng.choice(FAULTS)
        faulty = Faulty(store._env._lmdb, fails_at, fault("as a fault"))
        store._env._lmdb = faulty
        try:
            QUESTIONS[name](store)
        except StoreUnavailable as raised:
            failures.append(str(raised))
        if store._env._lmdb is faulty:
            store._env._lmdb = faulty.inner
        assert store.hit(((ASKED[0][0], "user:free", 1),)), (fails_at, faulty.error)
        store.reset_all()
    assert failures
    assert all("as a fault" in failure for failure in failures), failures


async def test_the_event_loop_goes_on_while_a_running_file_is_looked_at_page_by_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, loop, verify = tmp_path / "lmdb", asyncio.get_running_loop(), lmdb.verify.verify
    store = LmdbStore(path, **SMALL)
    limiter, went_on = Limiter(store, on_error="allow"), list[bool]()

    def look(*given: Any, **named: Any) -> Any:
        turned = threading.Event()
        loop.call_soon_threadsafe(turned.set)
        went_on.append(turned.wait(1.0))
        return verify(*given, **named)

    await limiter.hit("user:ann", "5/hour")
    monkeypatch.setattr(lmdb.verify, "verify", look)
    all_but_the_heads_and_the_records_of_bans(path / "data.mdb")
    for _ in range(500):
        await limiter.hit("user:ann", "5/hour")
        if went_on:
            break
        await asyncio.sleep(0.01)
    await limiter.close()
    if not went_on:
        pytest.fail("nobody looked at it")
    assert all(went_on)


@pytest.mark.parametrize("damage", [zeroed, heads_damaged, heads_replaced, all_but_the_heads_and_the_records_of_bans])
@pytest.mark.parametrize(
    ("ask", "mended"), [("hit", True), *((ask, False) for ask in ("hit", "peek", "stats", "count", "bans"))]
)
def test_who_runs_while_the_file_is_damaged_in_place_goes_on_with_the_file_that_is_mended(
    place: Path, damage: Callable[[Path], None], ask: str, mended: bool
) -> None:
    """By itself, or by a worker that starts; every error in between is the store's own."""
    store, heard = opened(place)
    asked = ((Bucket("rule", parse_limits("50/day")), "user:ann", 1),)
    asks: dict[str, Callable[[], Any]] = {
        "hit": lambda: store.hit(asked),
        "peek": lambda: store.peek(asked),
        "stats": lambda: store.stats(),
        "count": lambda: store.bans.count(),
        "bans": lambda: store.bans.active(),
    }
    damage(place / "data.mdb")
    if mended:
        code = """
            store, asked = LmdbStore(path, map_size=1 << 20), Bucket("rule", parse_limits("50/day"))
            for _ in range(21):
                with suppress(StoreUnavailable):
                    store.hit(((asked, "user:ann", 1),))
        """
        python(code, place)
    for act in (asks[ask], asks["hit"], asks["hit"]):
        with suppress(StoreUnavailable):
            act()
    last = asks["hit"]()
    assert 26 <= last.remaining <= 29 if mended else 46 <= last.remaining <= 48
    assert mended or "store_set_aside" in heard.kinds
    assert len(store.bans.active()) == 2
    in_another_process(store, lambda own: len(own.bans.active()) == 2)


def test_where_no_room_can_be_taken_beforehand_nothing_is_written_through_the_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lmdb_opening, "CAN_TAKE_ROOM", False)
    monkeypatch.delattr(os, "posix_fallocate")
    store, _ = opened(tmp_path / "lmdb", map_size=1 << 16)
    asked = ASKED[0][0]
    assert all(store.hit(((asked, f"user:{number}", 1),)) for number in range(1_000))
    assert (tmp_path / "lmdb" / "data.mdb").stat().st_size < store.stats().bytes_held


def test_all_bans_of_a_large_damaged_file_are_rescued(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "lmdb")
    keys = {f"user:{number}" for number in range(5_000)}
    for key in keys:
        store.bans.ban(key, HOUR_US, "r" * 200, "manual")
    store.close()
    data = tmp_path / "lmdb" / "data.mdb"
    assert data.stat().st_size > 2 << 20
    second_page_damaged(data)
    store = LmdbStore(tmp_path / "lmdb")
    assert {ban.key for ban in store.bans.active()} == keys
    store.close()


def test_half_a_record_of_a_ban_with_zeros_behind_it_is_no_ban(place: Path) -> None:
    data = place / "data.mdb"
    content = bytearray(data.read_bytes())
    mark = re.search(rb"....(?=.{6}\[\d+,false,)", content, re.DOTALL)
    content[-4_096:] = mark[0] + bytes(4_092)
    data.write_bytes(content)
    second_page_damaged(data)
    store, _ = opened(place)
    assert sorted(ban.key for ban in store.bans.active()) == ["192.0.2.0/24", "user:eve"]


def test_damage_that_shows_later_is_an_error_and_then_a_new_start(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, heard = opened(place)

    def damaged(*_: object) -> None:
        raise lmdb.CorruptedError("mdb_get: page 7 is not there")

    with monkeypatch.context() as patched:
        patched.setattr("slidegate.stores.lmdb.transaction.Transaction.save", damaged)
        with pytest.raises(StoreUnavailable, match="is damaged: mdb_get: page 7"):
            store.hit(ASKED)
    assert store.hit(ASKED).remaining == 4
    assert heard.kinds == ["store_set_aside", "bans_rescued"]


def test_who_runs_while_a_newer_slidegate_takes_the_file_over_leaves_it(tmp_path: Path) -> None:
    path, clock = tmp_path / "lmdb", FakeClock()
    store, _ = opened(path, clock=clock)
    store.hit(ASKED)
    newer = bytes([SCHEMA_VERSION + 1, 254 - SCHEMA_VERSION])
    txn = store._env.begin()
    txn.put(b"schema", newer, db=store._env.dbs.meta)
    store._env.commit(txn)
    clock.advance("2s")
    store.hit(ASKED)  # about once a second it looks
    with pytest.raises(StoreUnavailable, match=f"layout version {SCHEMA_VERSION + 1}, .*upgrade slidegate"):
        store.hit(ASKED)
    store.close()
    with lmdb.open(str(path), max_dbs=16, readonly=True) as env:
        meta = env.open_db(b"meta", create=False)
        with env.begin() as read:
            assert read.get(b"schema", db=meta) == newer


def test_files_that_are_taken_away_are_made_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = opened(place)
    shutil.rmtree(place)
    monkeypatch.setattr(store._env, "_looked_us", 0)
    store.hit(ASKED)
    assert [store.hit(ASKED).remaining for _ in range(2)] == [4, 3]
    assert LmdbStore(place, **SMALL).hit(ASKED).remaining == 2
    assert (place / "data.mdb").exists()


def test_a_file_that_others_have_open_is_not_read_whole(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("somebody may be writing")

    first, _ = opened(place)
    monkeypatch.setattr(lmdb.verify, "verify", fail)
    in_another_process(first, lambda own: own.hit(ASKED))
    assert first.hit(ASKED).remaining == 2
    first.close()
