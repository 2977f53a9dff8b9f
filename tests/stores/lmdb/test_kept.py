"""What is kept, and a file for each start of the machine: what a restart of it forgets, and what it does not."""

import asyncio
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import Mock

import lmdb
import pytest

from slidegate import BanPolicy, ConfigurationError, Quota, parse_limits
from slidegate.core import Ban, Bucket, StoreTimeout, StoreUnavailable
from slidegate.core.bans.ban import read_ban
from slidegate.stores.lmdb import LmdbStore, counts, gate, kept
from slidegate.stores.lmdb.counts import LAYOUT, boot_id, boot_us
from slidegate.stores.lmdb.kept import KEPT, Kept
from slidegate.stores.lmdb.transaction import Transaction
from slidegate.testing import FakeClock, RecordingObserver

from ...contract.ban_player import HAND, BanPlayer
from ...contract.player import listed, same, settle
from ...contract.programs import HOUR_US, Choices, drawn
from ...contract.store_contract import CHECKS, with_examples
from ...redis_servers import until
from ...reference.ban_model import Made
from ..conftest import Opened
from ..forked import actor, child, fork, fork_in_c, outcome
from .processes import SMALL, Faulty, keys_in

POLICY = BanPolicy("1/minute", "1h", factor=2, forgive="400d")


class Machine:
    def __init__(self, path: Path, opened: Opened, observer: RecordingObserver, patch: pytest.MonkeyPatch) -> None:
        self.path, self.opened, self.observer, self.patch = path, opened, observer, patch
        self.boot, self.wall, self.stores = "1", FakeClock(10**15), list[Any]()

    def store(self, **options: Any) -> Any:
        self.stores.append(self.opened(wall_clock=self.wall, **options))
        return self.stores[-1]

    def restart(self, boot: str, **options: Any) -> Any:
        """Restart it with another boot id, as it is seen; return a store."""
        for store in self.stores:
            store.close()
        self.boot = boot
        self.observer.events.clear()
        return self.store(**options)

    @property
    def files(self) -> list[str]:
        return sorted(file.name for file in self.path.glob("counts-*"))


@pytest.fixture
def machine(tmp_path: Path, opened: Opened, observer: RecordingObserver, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path / "store", opened, observer, monkeypatch)
    monkeypatch.setattr(counts, "boot_id", lambda: made.boot)
    return made


def test_the_boot_clock_and_boot_id_are_those_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = boot_us()
    assert boot_us() >= first > 0
    assert len(boot_id()) == 32
    assert boot_id() == boot_id()
    for missing in (tmp_path / "missing", tmp_path):
        monkeypatch.setattr(counts, "_BOOT_ID", missing)
        assert boot_id() == ""

    monkeypatch.setattr(counts.sys, "platform", "darwin")  # where it is that of the session
    for said, known in (("1B4E28BA-2FA1-11D2-883F-B9A761BDE3FB\n", "1b4e28ba2fa111d2883fb9a761bde3fb"), ("", "")):
        ended = subprocess.CompletedProcess((), 0, stdout=said)
        monkeypatch.setattr(subprocess, "run", lambda *_, ended=ended, **__: ended)
        assert boot_id() == known


@pytest.mark.parametrize(
    ("boots", "others_live", "remaining"),
    [(("1", "1"), False, 3), (("1", "2"), False, 4), (("", ""), True, 2), (("", ""), False, 4)],
    ids=["of the workers", "a reboot", "without a boot id while somebody lives", "without a boot id"],
)
def test_a_restart_keeps_windows_or_starts_new_ones(
    machine: Machine, boots: tuple[str, str], others_live: bool, remaining: int
) -> None:
    machine.boot, boot = boots
    first = machine.store()
    first.hit(CHECKS)
    first.bans.ban("user:eve", None, "by request", "ann")
    with child(lambda: LmdbStore(machine.path, **SMALL).hit(CHECKS)) if others_live else nullcontext():
        store = machine.restart(boot)
        assert store.hit(CHECKS).remaining == remaining
    assert machine.observer.kinds == ["counts_restarted"] * (remaining == 4)
    if boot == "2":
        assert "is of an earlier start of the machine" in machine.observer.events[0].message
    assert banned(store) == ["user:eve"]
    assert len(machine.files) == 1
    assert not boot or machine.files == [f"counts-{LAYOUT}-{boot}.mdb"]


def test_a_start_waits_until_what_is_kept_is_read(machine: Machine) -> None:
    read = Kept.read
    machine.patch.setattr(gate, "WAIT_S", 0.02)
    machine.patch.setattr(Kept, "read", lambda *given: time.sleep(0.2) or read(*given))
    ban(machine.store(), "user:ann")
    store = machine.restart("2")
    assert not store.hit(CHECKS, (), 0.01).allowed
    store.close()
    with opened_kept(machine) as file, file.begin(write=True) as txn:
        txn.put(b"version", b"2")
    with pytest.raises(ConfigurationError, match=r"kept.mdb has version 2; upgrade slidegate"):
        machine.restart("3")


def test_a_command_waits_for_what_has_changed_before_it_and_the_rest_is_copied_later(machine: Machine) -> None:
    store, write, writes = machine.store(), Kept._write, list[list[bytes]]()
    machine.patch.setattr(kept, "MOST", 1)

    def write_while_others_change(self: Kept, changes: Any) -> None:
        write(self, changes)
        writes.append([change.name for change in changes])
        assert len(writes) < 20, "it would never end"
        store.hit([(PLAN, "user:ann", 1)])
        if len(writes) == 2:
            store._batcher.run(lambda transaction: transaction.windows.reset_all())
            store.hit([(PLAN, "user:zoe", 1)])

    machine.patch.setattr(Kept, "_write", write_while_others_change)
    store.hit([(PLAN, "user:ann", 1), (PLAN, "user:zoe", 1)])
    ban(store, "user:eve")
    assert [len(names) for names in writes] == [1] * len(writes)
    left = [store.peek([(PLAN, key, 1)]).remaining for key in ("user:ann", "user:zoe")]
    machine.patch.setattr(Kept, "_write", write)
    store = machine.restart("2")
    assert [store.peek([(PLAN, key, 1)]).remaining for key in ("user:ann", "user:zoe")] == left
    assert banned(store) == ["user:eve"]


def test_damage_in_the_file_that_is_kept_kills_nobody_and_is_reported(machine: Machine, rng: random.Random) -> None:
    store = machine.store()
    keys = [f"user:{number}" for number in range(300)]
    ban(store, *keys, "192.0.2.0/24")
    store.bans.strike(POLICY, "198.51.100.7", 1, "why")
    store.hit([(Bucket("plan", [Quota("5/month")]), "user:ann", 2)])
    store.close()
    whole = (machine.path / KEPT).read_bytes()
    for boot in range(60):
        text, at = whole, rng.randrange(len(whole))
        match rng.randrange(3):
            case 0:
                text = text[:at]
            case 1:
                text = text[:at] + rng.randbytes(1) + text[at + 1 :]
            case _:
                at -= at % 4_096
                text = text[:at] + rng.choice([bytes(4_096), rng.randbytes(4_096)]) + text[at + 4_096 :]
        (machine.path / KEPT).write_bytes(text)
        for file in machine.path.glob("counts-*"):
            file.unlink()
        store = machine.restart(f"damaged{boot}")
        is_reported = "kept_damaged" in machine.observer.kinds
        assert is_reported or len(banned(store)) >= len(keys) - 1, "one byte of a row spoils no other"
        ban(store, "user:zoe")
        store = machine.restart(f"again{boot}")
        assert "user:zoe" in banned(store)


def test_a_worker_that_sees_another_boot_id_joins_those_that_live(machine: Machine) -> None:
    def begin() -> Any:
        machine.boot = "theirs"
        own = LmdbStore(machine.path, **SMALL)
        own.hit(CHECKS)
        return own

    with child(begin):
        store = machine.store()
        assert machine.files == [f"counts-{LAYOUT}-theirs.mdb"]
        assert store.hit(CHECKS).remaining == 3
        store._env.note_failure(lmdb.PanicError("its own error"))
        assert [store.hit(CHECKS).remaining for _ in range(2)] == [2, 1], "it joins them again"
    store._env.note_failure(lmdb.PanicError("its own error"))
    assert store.hit(CHECKS).remaining == 0, "although nobody else lives now"
    assert machine.observer.kinds == []


def test_another_layout_is_refused_while_its_workers_live(machine: Machine) -> None:
    def begin() -> Any:
        counts.LAYOUT = LAYOUT + 1  # type: ignore[misc]
        own = LmdbStore(machine.path, **SMALL)
        ban(own, "user:eve")
        return own

    refused = f"is in use with layout {LAYOUT + 1} by another version of slidegate, and this one uses {LAYOUT}; stop"
    with child(begin):
        with pytest.raises(ConfigurationError, match=refused):
            machine.store()
        with pytest.raises(StoreUnavailable, match=refused):
            machine.store(create=False)
    store = machine.store()
    assert banned(store) == ["user:eve"], "what is kept is read"
    assert machine.files == [f"counts-{LAYOUT}-1.mdb"]
    assert machine.observer.kinds == ["counts_restarted"]


def test_a_reader_keeps_no_worker_from_starting_again(machine: Machine) -> None:
    machine.store().hit(CHECKS)
    reader = machine.restart("1", create=False)
    assert reader.peek(CHECKS).remaining == 3

    def begin() -> Any:
        machine.boot = "2"
        return LmdbStore(machine.path, **SMALL)

    with child(begin):
        reader._env._examine_at_s = 0.0
        assert reader.peek(CHECKS).remaining == 4


def test_the_size_of_the_map_is_that_in_the_file_unless_a_store_alone_asks_for_more(tmp_path: Path) -> None:
    path, mib = tmp_path / "lmdb", 1 << 20

    def size_of(store: Any) -> int:
        return int(store._env.counts.lmdb.info()["map_size"])

    def beside(most: int) -> Callable[[], object]:
        def begin() -> Any:
            own = LmdbStore(path, max_map_size=most)
            assert size_of(own) == 8 * mib
            return own

        return begin

    store = LmdbStore(path, max_map_size=8 * mib)
    for most in (4 * mib, 16 * mib):
        with child(beside(most)):
            assert store.hit(CHECKS)
    store.close()
    for most, size in ((4 * mib, 8 * mib), (None, 8 * mib), (16 * mib, 16 * mib), (2 * mib, 16 * mib)):
        store = LmdbStore(path, max_map_size=most)  # a tool does not know the size, and gives none
        assert size_of(store) == size
        assert store.peek(CHECKS).remaining == 2  # type: ignore[union-attr]
        store.close()


# -- what was acknowledged is there after a reboot ---------------------------------------------------------------------


PLAN = Bucket("plan", parse_limits(Quota("60/year")))


def banned(store: Any) -> list[str]:
    return sorted(ban.key for ban in listed(store))


def ban(store: Any, *keys: str, length_us: int | None = None) -> None:
    for key in keys:
        store.bans.ban(key, length_us, "by request", "ann")


def opened_kept(machine: Machine) -> Any:
    return lmdb.open(str(machine.path / KEPT), subdir=False, lock=False, max_dbs=4)


def rows_kept(machine: Machine) -> dict[bytes, Any]:
    with opened_kept(machine) as file, file.begin() as txn:
        names = [name for name in ("bans", "levels", "windows") if txn.get(name.encode())]
        dbs = [file.open_db(name.encode(), txn=txn, create=False) for name in names]
        return {row: json.loads(stored) for database in dbs for row, stored in txn.cursor(database)}


def unkept(store: Any) -> int:
    found = list[int]()
    store._env.run(lambda txn: found.append(txn.stat(store._env.counts.dbs.unkept)["entries"]))
    return found[0] if found else -1  # somebody else stands in the gate


def crash(machine: Machine, boot: str, **options: Any) -> Any:
    """Restart the machine without the end of a worker; return a store."""
    for store in machine.stores:
        store._env.close_files()
    return machine.restart(boot, **options)


def test_a_new_file_is_on_the_disk_after_one_commit_for_which_others_wait_at_the_gate(machine: Machine) -> None:
    machine.store().close()
    with opened_kept(machine) as file:
        assert file.info()["last_txnid"] == 1


def test_rows_have_named_fields_and_a_version_and_every_later_version_reads_them(machine: Machine) -> None:
    store = machine.store()
    ban(store, "user:eve", "192.0.2.0/24", "user:gone")
    store.bans.unban("user:gone", "ann")
    store.bans.strike(POLICY, "user:bob", 1, "why")
    store.hit(((PLAN, "user:kim", 3),))
    store.hit(((PLAN, "user:lee", 3),))
    store.reset("user:lee")
    store.hit(CHECKS)
    store.close()
    ends, since = {"until_us": 10**15 + HOUR_US}, {"since_us": 10**15}
    hand = {"reason": "by request", "by": "ann", "level": 0, **since, "until_us": None}
    assert rows_kept(machine) == {
        b"user:eve": {"key": "user:eve", **hand},
        b"\xff192.0.2.0/24": {"key": "192.0.2.0/24", **hand},
        b"user:bob": {"key": "user:bob", "reason": "why", "by": "abuse", "level": 1, **since, **ends},
        b"user:bob\xffabuse": {"level": 1, **ends, "over_us": 1034563600000000},
        b"user:kim\xff" + bytes.fromhex("09a2b239af69533d"): {"spent": 3, "until_us": 1009843200000000},
    }


def test_a_file_of_version_0_1_is_read_by_every_later_one(machine: Machine) -> None:
    """Its rows are those of the test above, but for what was deleted."""
    machine.path.mkdir()
    shutil.copy(Path(__file__).parents[1] / "data" / KEPT, machine.path / KEPT)
    store = machine.store()
    assert banned(store) == ["192.0.2.0/24", "user:bob", "user:eve"]
    assert store.hit(((PLAN, "user:kim", 1),)).remaining == 56
    machine.wall.advance(us=HOUR_US)
    second = store.bans.strike(POLICY, "user:bob", 1, "again")
    assert (second.level, second.until_us - second.since_us) == (2, 2 * HOUR_US)


def killed(machine: Machine, act: Callable[[Any], object]) -> None:
    """Do something with a store of a process that is killed where the test has put `exits`."""
    ended = outcome(*actor(lambda _: act(LmdbStore(machine.path, wall_clock=machine.wall, **SMALL))))
    assert ended[1] == 9


def exits(*_: Any, **__: Any) -> Any:
    os._exit(9)


@pytest.mark.parametrize("at", ["run_locked", "_write", "after _write", "after run_locked"])
def test_a_kill_in_a_copy_loses_nothing(machine: Machine, at: str) -> None:
    machine.patch.setattr(kept, "in_background", lambda work: None)  # nobody else copies meanwhile
    store = machine.store()
    ban(store, "user:eve", "user:bob")

    def act(own: Any) -> None:
        copying, name = own._env.kept, at.removeprefix("after ")
        inner = getattr(copying, name)
        setattr(copying, name, (lambda *given: exits(inner(*given))) if name != at else exits)
        own.bans.unban("user:bob", "ann")

    killed(machine, act)
    assert banned(store) == ["user:eve"]
    ban(store, "user:zoe")
    assert banned(crash(machine, "2")) == ["user:eve", "user:zoe"]


@pytest.mark.parametrize("who", ["a new worker", "a living one"])
def test_what_a_killed_worker_has_not_copied_is_copied_by_another(machine: Machine, who: str) -> None:
    """A strike and a charge wait for no disk; a new worker need not be asked anything, a living one has to be."""

    def act(own: Any) -> None:
        own._env.kept.keep_up = lambda: None
        own.bans.strike(POLICY, "user:eve", 1, "why")
        own.hit(((PLAN, "user:kim", 3),))
        os._exit(9)

    if who == "a living one":
        other = machine.store()
    killed(machine, act)
    if who == "a living one":
        other.hit(CHECKS)
    else:
        other = machine.store()
    until(lambda: not unkept(other), "it is copied")
    store = crash(machine, "2")
    assert banned(store) == ["user:eve"]
    assert store.hit(((PLAN, "user:kim", 1),)).remaining == 56


def test_a_command_returns_when_it_is_on_the_disk_and_a_request_waits_for_none(machine: Machine) -> None:
    store, synced, write = machine.store(), list[int](), Kept._write
    machine.patch.setattr(Kept, "_write", lambda own, changes: write(own, changes) or synced.append(len(changes)))
    machine.patch.setattr(kept, "in_background", lambda work: None)
    store.bans.strike(POLICY, "user:bob", 1, "why")
    store.hit(((PLAN, "ann", 1),))
    assert synced == []
    ban(store, "user:eve")
    assert synced == [4]
    commands = [
        lambda: store.bans.unban("user:eve", "ann"),
        lambda: store.bans.load([Ban(f"user:{number}", "", "ann", 0, 10**15, None) for number in range(70)]),
        lambda: store.reset("ann"),
        lambda: store.reset_all(),
    ]
    for at, command in enumerate(commands, start=2):
        command()
        assert (len(synced), unkept(store)) == (at, 0)
    for nothing in (lambda: store.bans.unban("user:eve", "ann"), lambda: store.reset("nobody")):
        nothing()
    assert len(synced) == 5


async def test_a_command_on_a_loop_waits_for_the_disk_beside_it(machine: Machine) -> None:
    store, may_write, write = machine.store(), threading.Event(), Kept._write
    machine.patch.setattr(Kept, "_write", lambda own, changes: may_write.wait(60) and write(own, changes))
    banning = [asyncio.ensure_future(settle(store.bans.ban(key, None, "why", "ann"))) for key in ("user:a", "user:b")]
    for _ in range(20):
        assert (await settle(store.hit(CHECKS))) is not None
        await asyncio.sleep(0.001)
    assert not any(each.done() for each in banning)
    assert await settle(store.bans.find(("user:a",))), "it is in force meanwhile"
    may_write.set()
    assert [made.key for made in await asyncio.gather(*banning)] == ["user:a", "user:b"]
    assert unkept(store) == 0


@pytest.mark.parametrize("way", [fork, fork_in_c])
def test_a_child_that_is_forked_within_a_copy_makes_its_own(machine: Machine, way: Callable[[], int]) -> None:
    machine.patch.setattr(gate, "FORK_S", 0.02)
    machine.patch.setattr(kept, "in_background", lambda work: None)  # a fork from C beside a busy thread may hang
    store, is_inside, may_write = machine.store(), threading.Event(), threading.Event()
    write = Kept._write

    def slowly(own: Kept, changes: Any) -> None:
        with own._opened():
            is_inside.set()
            may_write.wait(60)
        write(own, changes)

    def work(_: int) -> None:
        machine.patch.setattr(Kept, "_write", write)
        signal.alarm(60)
        assert [store.bans.find((key,)) is not None for key in ("user:eve", "user:zoe")] == [True, False]
        with pytest.raises(StoreTimeout):  # that of the parent is under way
            store.bans.ban("user:zoe", None, "why", "ann", 0.05)
        os.write(_, b"waits")
        store.bans.ban("user:yan", None, "why", "ann")

    machine.patch.setattr(Kept, "_write", slowly)
    thread = threading.Thread(target=ban, args=(store, "user:eve"))
    thread.start()
    assert is_inside.wait(60)
    pid, reading = actor(work, way)
    assert os.read(reading, 5) == b"waits"
    may_write.set()
    thread.join()
    assert outcome(pid, reading) == (b"", 0)
    assert banned(crash(machine, "2")) == ["user:eve", "user:yan", "user:zoe"]


def is_index_exact(transaction: Transaction) -> bool:
    txn, dbs = transaction.rows.txn, transaction.rows.dbs
    bans, levels, ends = [txn.stat(database)["entries"] for database in (dbs.bans, dbs.levels, dbs.ban_ends)]
    for_ever = sum(read_ban(packed).until_us is None for _, packed in txn.cursor(dbs.bans))
    return bool(ends == bans - for_ever + levels)


class Restarts(BanPlayer):
    """Plays bans and a quota to a machine that restarts, whose disk fails, and whose file is cut off or deleted."""

    def __init__(self, path: Path, choices: Choices) -> None:
        super().__init__(lambda clock: LmdbStore(path, clock=clock, **SMALL), choices)
        self.kept, self.boot, self.spent = path / KEPT, 0, Counter[str]()

    async def _move(self) -> None:
        kind, key = self.choices.below(16), self.choices.pick(self.clients)[1]
        match kind:
            case 1:
                self._cut_off(self.choices.pick((None, 0, 100, 4_096, 8_192)))
                await self._ban(key, None)
            case 2:
                await self._on_a_sick_disk(lambda: self.store.bans.ban(key, None, "why", HAND))
                self.model.ban(key, None, HAND, self.now_us)
            case 3:
                await self._restart(self.now_us, loads=2)
            case 4:
                await self._fail(lambda: self.store.bans.ban(key, None, "why", HAND))
            case 5:
                await self._ban(key, None)
                await self._fail(lambda: self.store.bans.unban(key, HAND))
            case 6:
                await self._fail(lambda: self.store.bans.strike(self.policies[0], key, 1_000, "why"))
            case 7:
                await self._fail(lambda: self.store.charge(((PLAN, key, 1),)))
        await super()._move()
        assert await settle(self.store._batcher.run(is_index_exact, needs_room=False)), "else repeated bans fill it"

    def _cut_off(self, size: int | None) -> None:
        """Cut the file off while no thread copies, which would be killed, or delete it."""
        self.moves.append(f"a file of which {size} bytes are left")
        copying = self.store._env.kept

        def cut_off() -> bool:
            if size is None:
                self.kept.unlink()
            else:
                os.truncate(self.kept, size)
            return True

        until(lambda: copying.run_locked(cut_off), "nobody copies")

    async def _fail(self, change: Callable[[], Any]) -> None:
        """Try a change which cannot be committed, and so is none."""
        self.moves.append("a change that fails")
        counts = self.store._env.counts
        with pytest.MonkeyPatch.context() as patched:
            error = self.choices.pick((lmdb.DiskError, RuntimeError))  # the second is one of a signal handler
            patched.setattr(counts, "lmdb", Faulty(counts.lmdb, error("as a fault"), "commit".__eq__))
            with pytest.raises((StoreUnavailable, RuntimeError)):
                await settle(change())

    async def _on_a_sick_disk(self, command: Callable[[], Any]) -> None:
        """Try a command which is in force, and fails because it cannot be kept yet, or nobody knows whether it is."""
        self.moves.append("a command that cannot be kept")
        write, is_late = Kept._write, self.choices.pick((True, False))

        def fail(own: Kept, changes: Any) -> None:
            if is_late:
                write(own, changes)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Kept, "_write", fail)
            with pytest.raises(StoreUnavailable, match="the change is in force"):
                await settle(command())

    async def _hit(self, client: tuple[str, str], peeks: bool) -> None:
        await super()._hit(client, peeks)
        self.spent[client[1]] += 1
        decision = await settle(self.store.charge(((PLAN, client[1], 1),)))
        same(decision.remaining, max(PLAN.limits[0].amount - self.spent[client[1]], 0))

    async def _reset(self, key: str | None) -> None:
        await super()._reset(key)
        self.spent = Counter() if key is None else self.spent - Counter({key: self.spent[key]})

    async def _restart(self, start_us: int, loads: int) -> None:
        """Restart the workers, or the machine, which forgets strikes."""
        self.moves.append(f"a restart of {'the workers' if loads == 1 else 'the machine'}")
        await settle(self.store.close())
        if loads == 2:
            self.boot += 1
            self.hits.clear()
            self.model.entries = [entry for entry in self.model.entries if isinstance(entry, Made)]
        self.model.changes = []
        self._wait(max(start_us - self.now_us, 0))
        await self._open()


def test_what_was_acknowledged_outlives_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing else does: a change that failed has changed nothing, and what was lifted or reset stays away."""
    monkeypatch.setattr(kept, "MOST", 3)  # rows are copied, and written into a new file, in parts

    async def play(choices: Choices) -> None:
        with TemporaryDirectory(dir=tmp_path, ignore_cleanup_errors=True) as path:
            player = Restarts(Path(path), choices)
            monkeypatch.setattr(counts, "boot_id", lambda: f"{player.boot}")
            await player.play()

    with_examples(drawn(150, 600), play)


def test_where_the_disk_is_full_quotas_count_and_commands_fail(machine: Machine) -> None:
    store, asked = machine.store(), ((PLAN, "ann", 1),)
    assert store.hit(asked).remaining == 59
    with machine.patch.context() as patched:
        patched.setattr(Kept, "_write", Mock(side_effect=lmdb.DiskError("No space left on device")))
        assert [store.hit(asked).remaining for _ in range(5)] == [58, 57, 56, 55, 54]
        for command in (lambda: ban(store, "user:eve"), lambda: store.reset("ann"), store.reset_all):
            with pytest.raises(StoreUnavailable, match=r"kept.mdb: .*No space left"):
                command()
        until(lambda: [store.hit(CHECKS)] and "map_full" in machine.observer.kinds, "it is reported")
    (full,) = [event for event in machine.observer.events if event.kind == "map_full"]
    assert "kept.mdb: No space left on device" in full.message
    assert store.hit(asked).remaining == 59
    store = machine.restart("2")
    assert store.hit(asked).remaining == 58, "what comes later has all"
    assert banned(store) == ["user:eve"]


def test_the_bans_of_a_full_file_fit_into_that_after_a_restart(machine: Machine, rng: random.Random) -> None:
    store = machine.store(max_map_size=1 << 20)
    store.bans._batcher.command = store.bans._batcher.run  # all of them are kept when the file is closed
    with suppress(StoreUnavailable):  # it is full
        while True:
            store.bans.ban(f"user:{rng.random()}", HOUR_US, "x" * rng.randrange(256), "ann")
    made = store.bans.count()
    store = machine.restart("2", max_map_size=1 << 20)
    assert store.bans.count() == made
    assert store.hit(CHECKS).remaining == 4


def test_what_a_later_version_adds_to_rows_is_kept(machine: Machine) -> None:
    """Also databases of kinds that this one does not know."""
    store, further = machine.store(), {"later": {"é": [1, None]}, "scope": "all"}
    ban(store, "user:eve", "198.51.100.0/24")
    store.bans.strike(POLICY, "user:bob", 1, "why")
    store.hit(((PLAN, "user:kim", 3),))
    store.close()
    with opened_kept(machine) as file, file.begin(write=True) as txn:
        for name in (b"bans", b"levels", b"windows"):
            database = file.open_db(name, txn=txn)
            for row, stored in [*txn.cursor(database)]:
                txn.put(row, json.dumps(json.loads(stored) | further).encode(), db=database)
        txn.put(b"example.org", b"{}", db=file.open_db(b"pauses", txn=txn))
    written = rows_kept(machine)
    assert len(written) == 5
    for boot in "23":
        store = machine.restart(boot)
        assert banned(store) == ["198.51.100.0/24", "user:bob", "user:eve"]
        assert store.bans.find(("user:eve",)).reason == "by request"
        assert store.hit(((PLAN, "user:kim", 0),)).remaining == 57
        ban(store, "user:zoe")
        store.bans.unban("user:zoe", "ann")
        assert rows_kept(machine) == written
    store.hit(((PLAN, "user:kim", 1),))
    store.close()
    (quota,) = [fields for row, fields in rows_kept(machine).items() if row.startswith(b"user:kim")]
    assert quota == {"spent": 4, "until_us": 1009843200000000, **further}
    with opened_kept(machine) as file, file.begin() as txn:
        assert txn.get(b"example.org", db=file.open_db(b"pauses", txn=txn, create=False)) == b"{}"


def test_a_thread_copies_once_a_second(machine: Machine) -> None:
    store, background, keep, more = machine.store(), list[Any](), Kept.keep, ["user:eve"]

    def keep_while_more_changes(own: Kept, deadline_s: float) -> None:
        keep(own, deadline_s)
        while more:
            store.bans.strike(POLICY, more.pop(), 1, "why")

    machine.patch.setattr(kept, "in_background", lambda work: background.append(work) or "its end")
    machine.patch.setattr(Kept, "keep", keep_while_more_changes)
    store.hit(CHECKS)
    assert background == []
    for _ in range(2):
        for number in range(40):
            store.bans.strike(POLICY, f"user:{number}", 1, "why")
        assert len(background) == 1
        before_s = time.monotonic()
        background.pop()()
        assert time.monotonic() - before_s >= 1
        assert unkept(store) == 0, "also what has changed during the first copy"
        store.hit(CHECKS)
        assert background == [], "nothing is new"
        machine.wall.advance("2h")


def test_where_no_thread_can_be_started_the_next_change_tries_again(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine.patch.setattr(kept, "KEEP_EVERY_S", 0.01)
    store = machine.store()
    with machine.patch.context() as patched:
        patched.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        store.hit(((PLAN, "ann", 1),))
    assert "no thread can be started to copy, open or close files" in caplog.text
    store.hit(((PLAN, "ann", 1),))
    until(lambda: not unkept(store), "it is copied")


def test_a_copy_that_comes_after_the_end_makes_no_file(machine: Machine) -> None:
    store, is_late, run_locked = machine.store(), threading.Event(), Kept.run_locked
    with ThreadPoolExecutor(1) as pool:
        with gate.COPY_LOCK.lock:
            machine.patch.setattr(Kept, "run_locked", lambda *given: is_late.set() or run_locked(*given))
            copying = pool.submit(store._env.kept.keep, 60.0)
            assert is_late.wait(60)
            store.close()
            shutil.rmtree(machine.path)
            machine.path.mkdir()
        assert isinstance(copying.exception(60), StoreUnavailable)
    assert [*machine.path.iterdir()] == []


def test_while_the_disk_hangs_one_thread_copies_and_what_it_does_not_know_is_told(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    store, background, write = machine.store(), list[Any](), Kept._write
    is_inside, may_write = threading.Event(), threading.Event()

    def hang(own: Kept, changes: Any) -> None:
        is_inside.set()
        may_write.wait()
        raise OverflowError("unforeseen")

    machine.patch.setattr(kept, "KEEP_EVERY_S", 0.01)
    machine.patch.setattr(kept, "in_background", lambda work: background.append(work) or "its end")
    machine.patch.setattr(Kept, "_write", hang)
    store.hit(((PLAN, "ann", 1),))
    copier = threading.Thread(target=background.pop(), daemon=True)
    copier.start()
    is_inside.wait()
    for _ in range(20):
        store.hit(((PLAN, "ann", 1),))
    assert background == []
    may_write.set()
    copier.join()
    assert caplog.text.count("copying what outlasts a reboot failed") == 1
    assert "OverflowError('unforeseen')" in caplog.text
    machine.patch.setattr(Kept, "_write", write)
    store.hit(((PLAN, "ann", 1),))
    background.pop()()
    assert not unkept(store), "it goes on"


def test_a_quota_comes_back_to_the_end_of_its_period_and_no_longer(machine: Machine) -> None:
    store, checks = machine.store(), ((Bucket("plan", parse_limits(Quota("5/day"))), "user:ann", 1),)
    store.hit(checks)
    machine.wall.advance(us=-machine.wall() % 86_400_000_000 - 1)
    store = machine.restart("2")
    assert store.hit(checks).remaining == 3
    machine.wall.advance("26h")
    store = machine.restart("3")
    assert store.hit(checks).remaining == 4
    clock = FakeClock(10**9)
    other = machine.store(clock=clock)
    for _ in range(3):
        other.hit(CHECKS)
        clock.advance("1s")
    assert keys_in(other) == 2
