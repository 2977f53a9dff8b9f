"""Attacks on a gate in memory, and what an honest client notices: memory, the longest step of the event loop, p99.

Each scene runs in a process of its own. Its memory is the most by which that process grows while the attack lasts, and
the part that came in the second half of it: that part is about nothing where memory is bounded. All times are CPU time
of the loop's thread. Collections of garbage are no part of a step of the loop, and stand beside it. The honest client's
p99 stands for three times: alone, beside the same requests to the bare application, beside the attack. The command
fails if an honest request is refused or memory goes on growing.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Callable, Coroutine, Iterator
from multiprocessing import get_context
from typing import Any, Final, NamedTuple

from .report.tables import Cell, Table
from .scenes import floods, held
from .scenes.field import Seen, played

PACKAGES = ("starlette",)
MOST_LATER_MIB: Final = 16
COLUMNS: Final = {
    "attack": "",
    "answers": "",
    "MiB grown": ".1f",
    "in the second half": ".1f",
    "bound": "",
    "longest step ms": ".1f",
    "collection before ms": ".1f",
    "longest collection ms": ".1f",
    "honest p99 alone ms": ".1f",
    "beside no gate ms": ".1f",
    "beside the gate ms": ".1f",
}


class Scene(NamedTuple):
    """A scene, and what bounds its memory."""

    play: Callable[[float], Coroutine[Any, Any, Seen]]
    bound: str


SCENES: Final = {
    "150,000 IPv4 addresses": Scene(floods.ipv4, "`max_keys` 50,000"),
    "150,000 addresses of one IPv6 /48": Scene(floods.ipv6, "`max_keys` 50,000"),
    "150,000 header values, one in 16 of 8 kB": Scene(floods.header_values, "`max_keys` 50,000"),
    "100,000 path variants, 1,000 rules": Scene(floods.path_variants, "memos of some thousand entries"),
    "1,000 odd paths of 8 kB, 1,000 rules": Scene(floods.long_paths, "not remembered"),
    "5,000 requests, 2,500 of them waiting": Scene(held.waiting, "`wait_max` 500 for each key"),
    "1,000,000 bans end, 20,000 clients are banned": Scene(held.bans, "`max_bans`"),
}


def play_alone(name: str) -> Seen:
    """Play a scene in this process."""
    logging.disable()
    return played(SCENES[name].play(1))


def tables(options: Namespace) -> Iterator[Table]:
    """Play each scene in a process of its own."""
    rows: list[list[Cell]] = []
    weak = []
    for name, scene in SCENES.items():
        with get_context("spawn").Pool(1) as pool:
            seen = pool.apply(play_alone, (name,))
        answers = ", ".join(f"{count:,} of {status}" for status, count in sorted(seen.statuses.items()))
        memory = seen.growth_mib, seen.later_mib
        rows.append([name, answers, *memory, scene.bound, seen.longest_ms, *seen.collection_ms, *seen.p99_ms.values()])
        weak += [f"{name}: {seen.refused} honest requests were refused"] if seen.refused else []
        weak += [f"{name}: memory goes on growing"] if seen.later_mib > MOST_LATER_MIB else []
    yield Table("", COLUMNS, rows)
    if weak:
        raise SystemExit("\n".join(weak))
