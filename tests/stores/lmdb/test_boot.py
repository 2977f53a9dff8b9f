"""A file for each start of the machine: what a restart of it forgets, what it keeps, and whose file is deleted when."""

import subprocess
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import lmdb
import pytest

from slidegate import BanPolicy
from slidegate.core import Bucket, ConfigurationError, StoreUnavailable, parse_limits
from slidegate.stores.lmdb import LmdbStore, environment, layout, opening
from slidegate.stores.lmdb.journal import JOURNAL, Journal
from slidegate.stores.lmdb.layout import LAYOUT, boot_id, boot_us
from slidegate.testing import FakeClock, RecordingObserver

from .processes import SMALL, child

HOUR_US = 3_600_000_000
CHECKS = ((Bucket("rule", parse_limits("5/hour")), "user:ann", 1),)
POLICY = BanPolicy("1/minute", "1h", factor=2, forgive="400d")


class Machine:
    """A machine that can be started again, and its stores, which tell what happens to them."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.boot, self.observer = path, "1", RecordingObserver()
        self.wall, self.stores = FakeClock(10**15), list[Any]()
        monkeypatch.setattr(opening, "boot_id", lambda: self.boot)

    def store(self, **options: Any) -> Any:
        self.stores.append(LmdbStore(self.path, wall_clock=self.wall, **SMALL, **options))
        self.stores[-1].observe(self.observer)
        return self.stores[-1]

    def close(self) -> None:
        while self.stores:
            self.stores.pop().close()

    def restart(self, boot: str) -> Any:
        """Restart it with another boot id, as it is seen; return a store."""
        self.close()
        self.boot = boot
        self.observer.events.clear()
        return self.store()

    @property
    def files(self) -> list[str]:
        return sorted(file.name for file in self.path.glob("counts-*"))


def test_the_boot_clock_and_the_boot_id_are_those_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = boot_us()
    assert boot_us() >= first > 0
    assert len(boot_id()) == 32
    assert boot_id() == boot_id()
    for missing in (tmp_path / "missing", tmp_path):
        monkeypatch.setattr(layout, "_BOOT_ID", missing)
        assert boot_id() == ""


@pytest.mark.parametrize(("said", "known"), [("1B4E28BA-2FA1-11D2-883F-B9A761BDE3FB\n", True), ("", False)])
def test_on_macos_the_boot_id_is_that_of_the_session(said: str, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout.sys, "platform", "darwin")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess((), 0, stdout=said))
    assert boot_id() == ("1b4e28ba2fa111d2883fb9a761bde3fb" if known else "")


def test_a_restart_of_the_workers_keeps_windows_and_a_reboot_begins_them_anew(machine: Machine) -> None:
    machine.store().hit(CHECKS)
    assert machine.restart("1").hit(CHECKS).remaining == 3
    assert machine.observer.kinds == []
    assert machine.restart("2").hit(CHECKS).remaining == 4
    assert machine.observer.kinds == ["counts_restarted"]
    assert "is of an earlier start of the machine" in machine.observer.events[0].message
    assert machine.files == [f"counts-{LAYOUT}-2.mdb"]


def test_who_starts_waits_until_a_journal_is_read_however_long_that_takes(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Journal.read
    monkeypatch.setattr(environment, "START_S", 0.02)
    monkeypatch.setattr(Journal, "read", lambda journal: time.sleep(0.2) or read(journal))
    machine.store().bans.ban("user:ann", None, "by request", "ann")
    store = machine.restart("2")
    store.keep_deadline(0.01)
    assert not store.hit(CHECKS).allowed
    with (machine.path / JOURNAL).open("ab") as file:
        file.write(b'\n{"v":2,"ban":{}}')
    with pytest.raises(ConfigurationError, match="has lines of version 2"):
        machine.restart("3")


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
def test_without_a_boot_id_a_file_is_joined_while_somebody_lives_and_else_begun_anew(
    machine: Machine, others_live: bool
) -> None:
    machine.boot = ""
    first = machine.store()
    first.hit(CHECKS)
    first.bans.ban("user:eve", None, "by request", "ann")
    with child(lambda: LmdbStore(machine.path, **SMALL).hit(CHECKS)) if others_live else nullcontext():
        store = machine.restart("")
        assert store.hit(CHECKS).remaining == (2 if others_live else 4)
        assert machine.observer.kinds == ["counts_restarted"] * (not others_live)
    assert [ban.key for ban in store.bans.active()] == ["user:eve"]


def test_another_layout_is_refused_while_its_workers_live_and_else_begun_anew(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
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
            machine.store(read_only=True)
    store = machine.store()
    assert [ban.key for ban in store.bans.active()] == ["user:eve"], "its journal is read"
    assert machine.files == [f"counts-{LAYOUT}-1.mdb"]
    assert machine.observer.kinds == ["counts_restarted"]


def test_whoever_only_reads_keeps_nobody_from_beginning_anew(machine: Machine) -> None:
    machine.store().hit(CHECKS)
    machine.close()
    reader = machine.store(read_only=True)
    assert reader.peek(CHECKS).remaining == 3
    with child(lambda: _restarted(machine)):
        reader._env._examine_at_s = 0.0
        assert reader.peek(CHECKS).remaining == 4


def _restarted(machine: Machine) -> Any:
    environment._open.clear()  # the options of the parent are others
    machine.boot = "2"
    return LmdbStore(machine.path, **SMALL)


def test_the_size_of_the_map_is_that_in_the_file_unless_a_larger_one_is_asked_for_by_who_is_alone(
    tmp_path: Path,
) -> None:
    path, mib = tmp_path / "lmdb", 1 << 20

    def size_of(store: Any) -> int:
        return int(store._env.counts.lmdb.info()["map_size"])

    def beside(most: int) -> Callable[[], object]:
        def begin() -> Any:
            environment._open.clear()  # the options of the parent are others
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
