"""The clock of a host: one for all processes, never back, not over a reboot either."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate.core import Bucket, Quota, parse_limits
from slidegate.stores.lmdb import LmdbStore
from slidegate.stores.lmdb import environment as lmdb_env
from slidegate.stores.lmdb import layout as lmdb_layout
from slidegate.stores.lmdb.layout import boot_id, boot_us, offset_us, written
from slidegate.testing import RecordingObserver

FIRST, SECOND = bytes(15) + b"\1", bytes(15) + b"\2"
HOUR_US = 3_600_000_000


NOWHERE = bytes(16)
"""The id of a boot where the machine does not say it."""


@pytest.mark.parametrize(
    ("before", "boot", "machine_us", "unix_us", "now_us"),
    [
        pytest.param(None, FIRST, 100, 5_000, 5_000, id="a new environment starts at Unix time"),
        pytest.param(FIRST, FIRST, 200, 0, 5_100, id="a step of the system clock back changes nothing"),
        pytest.param(FIRST, FIRST, 200, 10**15, 5_100, id="a step of the system clock forward changes nothing"),
        pytest.param(FIRST, SECOND, 7, 6_500, 6_500, id="after a reboot time goes on by what has passed"),
        pytest.param(FIRST, SECOND, 7, 3, 5_000, id="the system clock was set back over a reboot"),
        pytest.param(NOWHERE, NOWHERE, 7, 6_500, 6_500, id="a boot clock that went back is a reboot"),
    ],
)
def test_time_goes_on_by_the_clock_of_the_machine_and_over_a_reboot_by_that_of_the_system(
    before: bytes | None, boot: bytes, machine_us: int, unix_us: int, now_us: int
) -> None:
    record = None if before is None else written(None, before, 4_900, 100, 5_000)
    assert offset_us(record, boot, machine_us, unix_us) + machine_us == now_us


# Does it reboot, what passes, where is the system clock set?
TURNS = st.tuples(st.booleans(), st.integers(0, 10**9), st.integers(-(10**12), 10**12))


@given(st.lists(TURNS, max_size=30))
def test_time_never_runs_back(life: list[tuple[bool, int, int]]) -> None:
    boot, machine_us, unix_us, record, last_us = 1, 0, 10**15, None, 0
    for reboots, passes_us, step_us in life:
        unix_us = max(unix_us + passes_us + step_us, 0)
        machine_us += passes_us
        if reboots:
            boot, machine_us = boot + 1, 0
        boot_bytes = boot.to_bytes(16, "big")
        offset = offset_us(record, boot_bytes, machine_us, unix_us)
        assert machine_us + offset >= last_us
        last_us = machine_us + offset
        record = written(record, boot_bytes, offset, machine_us, unix_us)


def test_the_boot_clock_and_the_boot_id_are_those_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = boot_us()
    assert boot_us() >= first > 0
    assert len(boot_id()) == 16
    assert boot_id() == boot_id()
    monkeypatch.setattr(lmdb_layout, "_BOOT_ID", tmp_path / "missing")
    assert boot_id() == bytes(16)


def test_a_window_a_ban_and_a_quota_go_on_over_a_reboot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine: dict[str, Any] = {"boot": FIRST, "boot_us": 10**9, "system_us": 10**15}
    for module, name in itertools.product((lmdb_env, lmdb_layout), ("boot_us", "system_us")):
        monkeypatch.setattr(module, name, lambda name=name: machine[name])
    for module in (lmdb_env, lmdb_layout):
        monkeypatch.setattr(module, "boot_id", lambda: machine["boot"])
    asked = ((Bucket("rule", parse_limits("5/hour")), "user:ann", 1),)

    def store() -> LmdbStore:
        return LmdbStore(tmp_path / "lmdb", map_size=1 << 20, wall_clock=lambda: machine["system_us"])

    before = store()
    for _ in range(5):
        before.hit(asked)
    before.bans.ban("user:eve", HOUR_US, "by request", "ann")
    plan = ((Bucket("plan", parse_limits(Quota("5/year"))), "user:ann", 2),)
    assert before.hit(plan).remaining == 3  # type: ignore[union-attr]
    before.close()
    machine.update(boot=SECOND, boot_us=5, system_us=10**15 + HOUR_US // 2)
    after = store()
    assert after.hit(asked).retry_after_us == HOUR_US // 2  # type: ignore[union-attr]
    assert [ban.left_us(machine["system_us"]) for ban in after.bans.active()] == [HOUR_US // 2]
    machine["boot_us"] += HOUR_US // 2
    machine["system_us"] += HOUR_US // 2
    assert after.hit(asked)
    assert after.hit(plan).remaining == 1  # type: ignore[union-attr]
    assert after.bans.active() == []
    heard = RecordingObserver()
    after.observe(heard)
    assert heard.kinds == []
    after.close()
