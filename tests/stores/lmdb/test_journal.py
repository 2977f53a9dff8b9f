"""The journal, and a file for each start of the machine: what a restart of it forgets, and what it keeps."""

import errno
import json
import math
import os
import random
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lmdb
import pytest

from slidegate import BanPolicy, ConfigurationError, Decision, Quota, parse_limits
from slidegate.core import Ban, Bucket, StoreUnavailable, parse_address
from slidegate.stores.lmdb import LmdbStore, gate, journal, kept_rows, layout, opening, registry
from slidegate.stores.lmdb.ban_rows import ban_of
from slidegate.stores.lmdb.journal import JOURNAL, Journal
from slidegate.stores.lmdb.layout import LAYOUT, boot_id, boot_us
from slidegate.stores.lmdb.transaction import Transaction
from slidegate.testing import FakeClock, RecordingObserver

from ...contract.ban_player import HAND, BanPlayer
from ...contract.player import listed, same, settle
from ...contract.programs import HOUR_US, Choices, drawn
from ...contract.store_contract import CHECKS, with_examples
from ...redis_servers import until
from ...reference.ban_model import Made
from ..conftest import Opened
from ..forked import actor, child, outcome
from .processes import SMALL, Faulty, keys_in

POLICY = BanPolicy("1/minute", "1h", factor=2, forgive="400d")


class Machine:
    """A machine that can be started again, and its stores, which tell what happens to them."""

    def __init__(self, path: Path, opened: Opened, observer: RecordingObserver) -> None:
        self.path, self.opened, self.observer = path, opened, observer
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
    made = Machine(tmp_path / "store", opened, observer)
    monkeypatch.setattr(opening, "boot_id", lambda: made.boot)
    return made


def test_the_boot_clock_and_boot_id_are_those_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = boot_us()
    assert boot_us() >= first > 0
    assert len(boot_id()) == 32
    assert boot_id() == boot_id()
    for missing in (tmp_path / "missing", tmp_path):
        monkeypatch.setattr(layout, "_BOOT_ID", missing)
        assert boot_id() == ""

    monkeypatch.setattr(layout.sys, "platform", "darwin")  # where it is that of the session
    for said, known in (("1B4E28BA-2FA1-11D2-883F-B9A761BDE3FB\n", "1b4e28ba2fa111d2883fb9a761bde3fb"), ("", "")):
        ended = subprocess.CompletedProcess((), 0, stdout=said)
        monkeypatch.setattr(subprocess, "run", lambda *_, ended=ended, **__: ended)
        assert boot_id() == known


def test_a_restart_of_the_workers_keeps_windows_and_a_reboot_begins_them_anew(machine: Machine) -> None:
    machine.store().hit(CHECKS)
    assert machine.restart("1").hit(CHECKS).remaining == 3
    assert machine.observer.kinds == []
    assert machine.restart("2").hit(CHECKS).remaining == 4
    assert machine.observer.kinds == ["counts_restarted"]
    assert "is of an earlier start of the machine" in machine.observer.events[0].message
    assert machine.files == [f"counts-{LAYOUT}-2.mdb"]


def test_a_start_waits_until_the_journal_is_read(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Journal.read
    monkeypatch.setattr(gate, "WAIT_S", 0.02)
    monkeypatch.setattr(Journal, "read", lambda journal: time.sleep(0.2) or read(journal))
    machine.store().bans.ban("user:ann", None, "by request", "ann")
    store = machine.restart("2")
    assert not store.hit(CHECKS, (), 0.01).allowed
    with (machine.path / JOURNAL).open("a") as file:
        file.write('\n{"v":2,"ban":{}}')
    with pytest.raises(ConfigurationError, match=r"kept.jsonl has lines of version 2; upgrade slidegate"):
        machine.restart("3")


def test_a_damaged_line_spoils_no_other_and_is_told(machine: Machine, rng: random.Random) -> None:
    store = machine.store()
    ban(store, "user:eve", "192.0.2.0/24")
    store.bans.strike(POLICY, "198.51.100.7", 1, "why")
    store.hit([(Bucket("plan", [Quota("5/month")]), "user:ann", 2)])
    ban(store, "user:zoe")
    whole = (machine.path / JOURNAL).read_bytes()
    damaged = whole[: whole.rindex(b"\n")]  # all lines but the last one
    hostile = [
        b"9e999",
        b"-1",
        b"1e308",
        str(2**70).encode(),
        b"[" * 100_000,
        b'"\\ud800"',
        b"NaN",
        b"true",
        b"\xff",
        b"",
    ]
    for boot in range(100):
        number = rng.choice([*re.finditer(rb"(?<=:)(\d+|\"[^\"]*\")", damaged)])
        found = rng.choice([number.span(), *[(at, at + 1) for at in range(len(damaged)) if damaged[at] != ord("\n")]])
        value = rng.choice([*hostile, bytes([rng.randrange(256)])])
        if found != number.span():
            value = value[:1]
        text = damaged[: found[0]] + value + damaged[found[1] :] + whole[len(damaged) :]
        if re.search(rb'"v":(?!1,)', text):  # which is that of a later version
            continue
        (machine.path / JOURNAL).write_bytes(text)
        for file in machine.path.glob("counts-*"):
            file.unlink()
        store = machine.restart(f"damaged{boot}")
        assert store.bans.find(("user:zoe",)) is not None, text
        lost = [line for line in text.splitlines() if line and not _can_be_read(line)]
        told = [event for event in machine.observer.events if event.kind == "journal_damaged"]
        assert len(told) >= bool(lost), text


def _can_be_read(line: bytes) -> bool:
    with suppress(ValueError, RecursionError):
        return isinstance(json.loads(line), dict)
    return False


def test_who_sees_another_boot_id_joins_those_who_live(machine: Machine) -> None:
    def begin() -> Any:
        machine.boot = "theirs"
        own = LmdbStore(machine.path, **SMALL)
        own.hit(CHECKS)
        return own

    with child(begin):
        store = machine.store()
        assert machine.files == [f"counts-{LAYOUT}-theirs.mdb"]
        assert store.hit(CHECKS).remaining == 3
        store._env.failure(lmdb.PanicError("its own error"))
        assert [store.hit(CHECKS).remaining for _ in range(2)] == [2, 1], "it joins them again"
    store._env.failure(lmdb.PanicError("its own error"))
    assert store.hit(CHECKS).remaining == 0, "although nobody else lives now"
    assert machine.observer.kinds == []


@pytest.mark.parametrize("others_live", [True, False])
def test_without_a_boot_id_a_file_is_joined_while_somebody_lives(machine: Machine, others_live: bool) -> None:
    machine.boot = ""
    first = machine.store()
    first.hit(CHECKS)
    first.bans.ban("user:eve", None, "by request", "ann")
    with child(lambda: LmdbStore(machine.path, **SMALL).hit(CHECKS)) if others_live else nullcontext():
        store = machine.restart("")
        assert store.hit(CHECKS).remaining == (2 if others_live else 4)
        assert machine.observer.kinds == ["counts_restarted"] * (not others_live)
    assert [ban.key for ban in listed(store)] == ["user:eve"]


def test_another_layout_is_refused_while_its_workers_live(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def begin() -> Any:
        opening.LAYOUT = LAYOUT + 1  # type: ignore[misc]
        own: Any = LmdbStore(machine.path, **SMALL)
        own.bans.ban("user:eve", None, "by request", "ann")
        return own

    refused = f"is in use with layout {LAYOUT + 1} by another version of slidegate, and this one uses {LAYOUT}; stop"
    with child(begin):
        with pytest.raises(ConfigurationError, match=refused):
            machine.store()
        with pytest.raises(StoreUnavailable, match=refused):
            machine.store(create=False)
    store = machine.store()
    assert [ban.key for ban in listed(store)] == ["user:eve"], "its journal is read"
    assert machine.files == [f"counts-{LAYOUT}-1.mdb"]
    assert machine.observer.kinds == ["counts_restarted"]


def test_whoever_only_reads_keeps_nobody_from_beginning_anew(machine: Machine) -> None:
    machine.store().hit(CHECKS)
    reader = machine.restart("1", create=False)
    assert reader.peek(CHECKS).remaining == 3

    def begin() -> Any:
        registry._open.clear()  # the options of the parent are others
        machine.boot = "2"
        return LmdbStore(machine.path, **SMALL)

    with child(begin):
        reader._env._examine_at_s = 0.0
        assert reader.peek(CHECKS).remaining == 4


def test_the_size_of_the_map_is_that_in_the_file_unless_who_is_alone_asks_for_more(tmp_path: Path) -> None:
    path, mib = tmp_path / "lmdb", 1 << 20

    def size_of(store: Any) -> int:
        return int(store._env.counts.lmdb.info()["map_size"])

    def beside(most: int) -> Callable[[], object]:
        def begin() -> Any:
            registry._open.clear()  # the options of the parent are others
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


# -- the journal: what was acknowledged is there after a reboot --------------------------------------------------------


PLAN = Bucket("plan", parse_limits(Quota("60/year")))
TORN = (
    b'\n{"v":1,"ban":{"key":"user:mal',
    b"\n" + bytes(4_096),
    b"\n[]",
    b'\n{"v":1,"ban":{}}',
    b'\n{"v":1,"later":{}}',
    b'\n{"v":1,"ban":{"key":"user:mal","until_us":null}}',
    b'\n{"v":1,"quota":{"key":"user:mal","window":"00","spent":"3","until_us":9007199254740992}}',
)


def banned(store: Any) -> list[str]:
    return sorted(ban.key for ban in listed(store))


def ban(store: Any, *keys: str, length_us: int | None = None) -> None:
    for key in keys:
        store.bans.ban(key, length_us, "by request", "ann")


def test_each_change_is_a_line_with_named_fields_and_a_version(
    machine: Machine, texts: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_rows, "MOST_A_SECOND", 4)  # of quotas
    store, journal, charged = machine.store(), machine.path / JOURNAL, list[Decision]()

    def charge(quota: str, cost: int = 1, times: int = 1, key: str = "user:ann") -> None:
        checks = ((Bucket("plan", parse_limits(Quota(quota))), key, cost),)
        charged.extend(store.hit(checks) for _ in range(times))

    def refund(times: int) -> None:
        for _ in range(times):
            store.refund(charged.pop().begin_refund())

    names = {"bans": store.bans, "POLICY": POLICY, "reset_all": store.reset_all, "advance": machine.wall.advance}
    names |= {"charge": charge, "refund": refund}

    def lines_of(change: str) -> str:
        size = journal.stat().st_size if journal.exists() else 0
        eval(change, names)
        return journal.read_text()[size:].strip("\n")

    texts(Path(__file__).with_name("journal.txt"), ">>> ", lines_of)
    plan = Bucket("plan", parse_limits(Quota("640/year")))
    assert machine.restart("2").hit(((plan, "user:ann", 1),)).remaining == 640 - 32


def killed(machine: Machine, act: Callable[[Any], object]) -> None:
    """Do something with a store of a process that is killed where the test has put `exits`."""

    def work(_: int) -> None:
        act(LmdbStore(machine.path, wall_clock=machine.wall, **SMALL))

    assert outcome(*actor(work))[1] == 9


def exits(*_: Any, **__: Any) -> Any:
    os._exit(9)


def test_a_kill_between_journal_and_commit_acknowledges_and_loses_nothing(machine: Machine) -> None:
    store = machine.store()
    ban(store, "user:eve", "user:bob")

    def cut_off(own: Any) -> Any:
        append = own._env.journal.append
        own._env.journal.append = lambda lines: (append(lines), exits())
        return own

    killed(machine, lambda own: ban(cut_off(own), "user:mallory"))
    killed(machine, lambda own: cut_off(own).bans.unban("user:bob", "ann"))
    assert banned(store) == ["user:bob", "user:eve"]
    store.bans.unban("user:eve", "ann")
    ban(store, "user:zoe")
    assert {"user:zoe"} <= {*banned(machine.restart("2"))} <= {"user:bob", "user:mallory", "user:zoe"}


def is_index_exact(transaction: Transaction) -> bool:
    """Return whether each ban with an end, and each level, is in the index once."""
    txn, dbs = transaction.rows.txn, transaction.rows.dbs
    bans, levels, ends = [txn.stat(database)["entries"] for database in (dbs.bans, dbs.levels, dbs.ban_ends)]
    for_ever = sum(ban_of(packed).until_us is None for _, packed in txn.cursor(dbs.bans))
    return bool(ends == bans - for_ever + levels)


class Restarts(BanPlayer):
    """Plays bans and a quota to a machine that restarts, whose disk fails and whose journal is torn or written anew."""

    def __init__(self, path: Path, choices: Choices) -> None:
        super().__init__(lambda clock: LmdbStore(path, clock=clock, **SMALL), choices)
        self.journal, self.boot, self.spent = path / JOURNAL, 0, Counter[str]()

    async def _open(self) -> None:
        await super()._open()
        self.journal.touch(0o600)

    async def _move(self) -> None:
        kind, key = self.choices.below(16), self.choices.pick(self.clients)[1]
        match kind:
            case 1:
                self.moves.append("a torn line")
                with self.journal.open("ab") as file:
                    file.write(self.choices.pick(TORN))
            case 2:
                self.moves.append("a compaction")
                compact(self.store)
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
                await self._charge_in_trouble(key)
        await super()._move()
        assert await settle(self.store._batcher.run(is_index_exact, needs_room=False)), (
            "or a tool that bans again and again fills it"
        )

    async def _charge_in_trouble(self, key: str) -> None:
        """Charge a quota, which the end of the disk does not prevent; the next line has this charge, too."""
        is_charged = await self._fail(lambda: self.store.charge(((PLAN, key, 1),)), needs_lines=False)
        if is_charged:
            self.spent[key] += 2
            decision = await settle(self.store.charge(((PLAN, key, 1),)))
            same(decision.remaining, max(PLAN.limits[0].amount - self.spent[key], 0))

    async def _fail(self, change: Callable[[], Any], needs_lines: bool = True) -> bool:
        """Try a change which cannot be committed, or whose lines cannot be written, or not whole.

        Returns:
            Whether it was made, which the end of the disk prevents only if it needs its lines.
        """
        fits, write, counts = self.choices.pick((None, 0, 20)), os.write, self.store._env.counts
        self.moves.append(f"a change that fails after {fits} bytes of its lines")
        before, fitting = self.journal.read_bytes(), [fits]

        def full(file: int, data: bytes) -> int:
            if size := fitting.pop() if fitting else 0:
                return write(file, data[:size])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with pytest.MonkeyPatch.context() as patched:
            if fits is None:
                error = self.choices.pick((lmdb.DiskError, RuntimeError))  # the second is one of a signal handler
                patched.setattr(counts, "lmdb", Faulty(counts.lmdb, error("as a fault"), "commit".__eq__))
            else:
                patched.setattr(journal.os, "write", full)
                await super()._hit(self.clients[0], peeks=False)  # everybody else is answered
            changed = False
            with suppress(StoreUnavailable, RuntimeError):
                changed = await settle(change())
        assert bool(changed) is not (needs_lines or fits is None)
        assert fits is None or self.journal.read_bytes() == before
        return bool(changed)

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
    monkeypatch.setattr(opening, "_AT_ONCE", 3)  # rows are written into a new file in parts

    async def play(choices: Choices) -> None:
        with TemporaryDirectory(dir=tmp_path) as path:
            player = Restarts(Path(path), choices)
            monkeypatch.setattr(opening, "boot_id", lambda: f"{player.boot}")
            await player.play()

    with_examples(drawn(150, 600), play)


def test_where_the_journal_cannot_grow_quotas_count_and_say_so_and_commands_fail(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    store, asked = machine.store(), ((PLAN, "ann", 1),)
    assert store.hit(asked).remaining == 59
    with monkeypatch.context() as patched:
        patched.setattr(journal.os, "write", full)
        assert [store.hit(asked).remaining for _ in range(5)] == [58, 57, 56, 55, 54]
        for command in (lambda: ban(store, "user:eve"), lambda: store.reset("ann"), store.reset_all):
            with pytest.raises(StoreUnavailable, match=r"quota exceeded"):
                command()
    assert machine.observer.kinds == ["map_full"]
    assert "kept.jsonl cannot grow" in machine.observer.events[0].message
    assert store.hit(asked).remaining == 53
    assert machine.restart("2").hit(asked).remaining == 52, "the next line has all that was counted"


def test_the_bans_of_a_full_file_fit_into_that_after_a_restart(machine: Machine, rng: random.Random) -> None:
    store = machine.store(max_map_size=1 << 20)
    with suppress(StoreUnavailable):  # it is full
        while True:
            store.bans.ban(f"user:{rng.random()}", HOUR_US, "x" * rng.randrange(256), "ann")
    made = store.bans.count()
    store = machine.restart("2", max_map_size=1 << 20)
    assert store.bans.count() == made
    assert store.hit(CHECKS).remaining == 4


# -- compaction --------------------------------------------------------------------------------------------------------


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MIN_BYTES", 2_000)


def compact(store: Any) -> None:
    store._env.journal.compact(store.unix_us(), store._env.wait_behind_gate)


@pytest.mark.usefixtures("short")
def test_at_twice_the_length_of_what_counts_it_is_written_anew(machine: Machine) -> None:
    store, kept = machine.store(), machine.path / JOURNAL
    store._env.journal._sync_at_s = math.inf  # nobody else compacts
    ban(store, *(f"user:{number}" for number in range(20)))
    assert store._env.journal.is_long(), "it has never been written anew"
    for _ in range(3):
        compact(store)
        size = kept.stat().st_size
        assert not store._env.journal.is_long()
        while not store._env.journal.is_long():
            ban(store, "user:7")
        assert 1.9 * size < kept.stat().st_size < 2.2 * size
    ban(store, "user:over", length_us=1)
    store.bans.unban("user:3", "ann")
    machine.wall.advance(us=2)
    compact(store)
    assert len([json.loads(line) for line in kept.read_text().splitlines() if line]) == 1 + 19
    assert banned(machine.restart("2")) == sorted(f"user:{number}" for number in range(20) if number != 3)


@pytest.mark.usefixtures("short")
def test_damaged_lines_that_are_not_copied_are_told_once(machine: Machine) -> None:
    store, kept = machine.store(), machine.path / JOURNAL
    ban(store, "user:ann", "user:eve", "user:zoe")
    kept.write_bytes(kept.read_bytes().replace(b'"user:eve"', b'"user:eve'))
    compact(store)
    compact(store)
    ban(store, "user:kim")
    told = [event for event in machine.observer.events if event.kind == "journal_damaged"]
    assert [event.details for event in told] == [{"lines": 1}]
    assert banned(store) == ["user:ann", "user:eve", "user:kim", "user:zoe"]
    assert banned(machine.restart("2")) == ["user:ann", "user:kim", "user:zoe"]


LINES = [
    {"ban": Ban("user:eve", "why", "ann", 0, 10**15, None)._asdict()},
    {"ban": Ban("198.51.100.0/24", "why", "ann", 0, 10**15, None)._asdict()},
    {"ban": Ban("198.51.100.0/24", "why", "abuse", 1, 10**15, 2 * 10**15)._asdict()},
    {"level": {"policy": "abuse", "key": "user:bob", "level": 1, "until_us": 10**15, "over_us": 2 * 10**15}},
    {
        "quota": {
            "key": "user:kim",
            "window": "64103d7761431d39",
            "spent": 3,
            "until_us": 1009843200000000,
            "rule": "plan",
        }
    },
    {"pause": {"host": "example.org", "until_us": 2 * 10**15}},
]


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("further", [{"scope": "all"}, {"": None, "later": {"é": [1, None]}}])
@pytest.mark.parametrize("where", ["in the row", "before it", "after it"])
def test_what_a_later_version_adds_to_lines_is_kept(machine: Machine, further: dict[str, Any], where: str) -> None:
    """Also where the file is written anew, and where a row is told once more beside another one of its key."""
    written, store = list[Any](), machine.store()
    for line in LINES:
        ((kind, fields),) = line.items()
        row = {kind: fields | further if where == "in the row" else fields}
        added = {} if where == "in the row" else further
        written.append({**added, "v": 1, **row} if where == "before it" else {"v": 1, **row, **added})

    def lines() -> list[Any]:
        return [json.loads(line) for line in (machine.path / JOURNAL).read_bytes().splitlines() if line]

    (machine.path / JOURNAL).write_bytes(b"\n".join(json.dumps(line).encode() for line in written) + b"\n")
    for boot in "23":
        store = machine.restart(boot)
        assert banned(store) == ["198.51.100.0/24", "198.51.100.0/24", "user:eve"]
        assert store.bans.find(("user:eve",)).reason == "why"
        assert store.bans.find((parse_address("198.51.100.7"),)).by == "ann"
        assert store.hit(((Bucket("plan", parse_limits(Quota("5/year"))), "user:kim", 0),)).remaining == 2
        compact(store)
        assert [line for line in lines() if "compacted" not in line] == written
    assert store.bans.strike(POLICY, "user:bob", 1, "why").level == 2
    told = len(lines())
    store._env.run(lambda _: [("ban", {"key": "198.51.100.0/24"})])
    if where == "in the row":
        assert lines()[told:] == [{"v": 1, "ban": {"key": "198.51.100.0/24", "lifted": True}}, written[2], written[1]]


@pytest.mark.usefixtures("short")
def test_what_is_appended_while_it_is_written_anew_is_kept(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    store, read_lines = machine.store(), journal.read_lines
    ban(store, "user:eve", "user:bob")

    def slowly(*given: Any) -> Any:
        kept = read_lines(*given)
        ban(store, "user:zoe")
        store.bans.unban("user:bob", "ann")
        return kept

    with monkeypatch.context() as patched:
        patched.setattr(journal, "read_lines", slowly)
        compact(store)
    assert banned(machine.restart("2")) == ["user:eve", "user:zoe"]


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("at", ["read_lines", "_write_anew", "fsync", "replace", "_sync_directory"])
def test_a_kill_in_a_compaction_loses_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    store = machine.store()
    ban(store, "user:eve", "user:bob")
    store.bans.unban("user:bob", "ann")

    def act(own: Any) -> None:
        where: Any = {"fsync": os, "replace": Path}.get(at, journal)
        monkeypatch.setattr(where, at, exits)
        compact(own)

    killed(machine, act)
    ban(store, "user:zoe")
    compact(store)
    assert not (machine.path / f"{JOURNAL}.new").exists()
    ban(store, "user:yan")
    assert banned(store) == ["user:eve", "user:yan", "user:zoe"]
    assert banned(machine.restart("2")) == ["user:eve", "user:yan", "user:zoe"]


@pytest.mark.usefixtures("short")
def test_a_thread_syncs_and_compacts_it_once_a_second(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    store, background, synced = machine.store(), list[Any](), list[int]()
    monkeypatch.setattr("slidegate.stores.lmdb.journal.in_background", background.append)
    monkeypatch.setattr(journal.os, "fdatasync", synced.append)
    store.hit(CHECKS)
    assert background == []
    ban(store, *(f"user:{number}" for number in range(40)))
    size = (machine.path / JOURNAL).stat().st_size
    for number in range(40):
        store.bans.unban(f"user:{number}", "ann")
    assert len(background) == 2, "at once, and a second later what has come since"
    for work in background:
        work()
        assert len(synced) == 1
    assert time.monotonic() >= store._env.journal._sync_at_s
    assert (machine.path / JOURNAL).stat().st_size < size / 10
    store.hit(CHECKS)
    assert len(background) == 2, "nothing is new"


def test_what_comes_last_is_synced_though_nothing_follows(machine: Machine) -> None:
    store = machine.store()
    for name in ("user:eve", "user:bob"):
        ban(store, name)
        until(lambda: not store._env.journal.is_unsynced, "the journal is synced")


# -- quotas ------------------------------------------------------------------------------------------------------------


def test_a_quota_comes_back_to_the_end_of_its_period_and_no_longer(machine: Machine) -> None:
    store, checks = machine.store(), ((Bucket("plan", parse_limits(Quota("5/day"))), "user:ann", 1),)
    store.hit(checks)
    machine.wall.advance(us=-machine.wall() % 86_400_000_000 - 1)
    compact(store)
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
