"""Floods on a limiter in memory, and what an honest client notices: memory, the longest step of the event loop, p99.

Each scene runs in a process of its own. Its memory is the most by which that process grows while the attack lasts, and
the part that came in the second half of it: that part is about nothing where memory is bounded. All times are CPU time
of the loop's thread. The honest client's p99 stands for three times: alone, beside the same requests to the bare
application, beside the attack. The command fails if an honest request is refused or our memory goes on growing.
"""

from __future__ import annotations

import logging
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from multiprocessing import get_context
from typing import Any, Final

from . import apps
from .report.tables import Cell, Table
from .scenes import fresh, held
from .scenes.field import Seen, played

PACKAGES = ("starlette", "asgi-ratelimit", "slowapi")
MAX_LATER_MIB: Final = 16
COLUMNS: Final = {
    "flood": "",
    "MiB": ".1f",
    "second half": ".1f",
    "step ms": ".1f",
    "collection ms": ".1f",
    "honest p99 ms, alone": ".1f",
    "beside bare": ".1f",
    "beside this": ".1f",
}
OURS: Final[dict[str, Callable[[float], Coroutine[Any, Any, Seen]]]] = {
    "150,000 IPv4 addresses": fresh.ipv4,
    "150,000 addresses of an IPv6 /48": fresh.ipv6,
    "150,000 header values, some of 8 kB": fresh.header_values,
    "50,000 paths, 1,000 rules": fresh.path_variants,
    "1,000 odd paths of 8 kB, 1,000 rules": fresh.long_paths,
    "5,000 requests, 2,500 waiting": held.waiting,
    "1,000,000 bans end, 20,000 come": held.bans,
    "5,000 idle websockets, all banned": held.websockets,
}
PEERS: Final[dict[str, Callable[[float], Coroutine[Any, Any, Seen]]]] = {
    "100,000 addresses, asgi-ratelimit": partial(fresh.ipv4_to, apps.asgi_ratelimit),
    "100,000 addresses, slowapi": partial(fresh.ipv4_to, apps.slowapi),
}
SCENES: Final = {**OURS, **PEERS}


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--scale", type=float, default=1.0, help="0.1 plays scenes of a tenth of their size")


def play_alone(name: str, scale: float) -> Seen:
    """Play a scene in this process."""
    logging.disable()
    return played(SCENES[name](scale))


def tables(options: Namespace) -> Iterator[Table]:
    """Play each scene in a process of its own."""
    rows: list[list[Cell]] = []
    weak = []
    for name in SCENES:
        with get_context("spawn").Pool(1) as pool:
            seen = pool.apply(play_alone, (name, options.scale))
        longest = seen.longest_ms, seen.collection_ms
        rows.append([name, seen.growth_mib, seen.later_mib, *longest, *seen.p99_ms.values()])
        if name in OURS:
            weak += [f"{name}: {seen.refused} honest requests were refused"] if seen.refused else []
            weak += [f"{name}: memory goes on growing"] if seen.later_mib > MAX_LATER_MIB else []
    yield Table("", COLUMNS, rows)
    if weak:
        raise SystemExit("\n".join(weak))
