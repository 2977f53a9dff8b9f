"""One clock for all processes of a host.

It runs as fast as the machine's boot clock (Linux: `CLOCK_BOOTTIME`, which no NTP step touches and which counts while
the machine sleeps), so all processes read the same time without asking each other. Its offset stands in the file::

    time = boot clock + offset

After a reboot the boot clock starts from 0. The first process then finds another boot id, and sets a new offset. Time
goes on from the last recorded moment plus the time that has passed since then by the system's clock, and never from
before that moment. The moment is recorded about once a second; a reboot takes longer.
"""

from __future__ import annotations

import time
from pathlib import Path
from struct import Struct
from typing import Final

RECORD_EVERY_US: Final = 1_000_000

_RECORD: Final = Struct("=16sqqq")  # boot id, offset, last recorded moment, Unix time of that moment
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
# macOS has no CLOCK_BOOTTIME; its CLOCK_MONOTONIC is the same for all processes and counts while the machine sleeps.
_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_us() -> int:
    """Return microseconds since the machine was started."""
    return time.clock_gettime_ns(_CLOCK) // 1000


def wall_us() -> int:
    """Return Unix time in microseconds."""
    return time.time_ns() // 1000


def boot_id() -> bytes:
    """Return 16 bytes that are different after each start of the machine; zeros where the system has none."""
    try:
        return bytes.fromhex(_BOOT_ID.read_text(encoding="ascii").strip().replace("-", ""))[:16].ljust(16, b"\0")
    except (OSError, ValueError):
        return bytes(16)


def offset_us(record: bytes | None, boot: bytes, machine_us: int, unix_us: int) -> int:
    """Return the offset: the time minus the boot clock.

    Args:
        record: The bytes that `written` returned last, perhaps before a reboot; None in a new environment.
        boot: The boot id.
        machine_us: The boot clock.
        unix_us: Unix time, with which a new environment starts.
    """
    if record is None:
        return unix_us - machine_us
    before, offset, last_us, last_unix_us = _RECORD.unpack(record)
    if before == boot and machine_us + offset >= last_us:
        return int(offset)
    return int(last_us + max(unix_us - last_unix_us, 0) - machine_us)


def written(record: bytes | None, boot: bytes, offset: int, machine_us: int, unix_us: int) -> bytes:
    """Return the record to write; its moment is never earlier than that of the record before."""
    last_us = machine_us + offset
    if record is not None:
        last_us = max(last_us, _RECORD.unpack(record)[2])
    return _RECORD.pack(boot, offset, last_us, unix_us)
