"""``slidegate top``: the busiest rules, routes and clients, live in the terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from typing import Any, Final

import click

from ..admin import views
from ..admin.activity import SECTION, ClusterActivity, published_in
from ..limiter import Limiter
from ..stats.statistics import onlooker
from .output import show, table, with_format
from .store import ask, said_of, with_store

SHOWN: Final = 10
MAX_CLIENTS: Final = 100
_COLUMNS: Final = ("qps", "passed", "refused", "banned", "shadow_refused", "p95_ms")


@click.command()
@with_store
@click.option("--window", default="1m", show_default=True, metavar="DURATION", help="How far back the stats go.")
@click.option(
    "--every", default=2.0, show_default=True, type=click.FloatRange(0.2, 60), help="Seconds between updates."
)
@click.option("--once", is_flag=True, help="Show them once and exit, as if the output is not a terminal.")
@with_format
def top(store: str, window: str, every: float, once: bool, as_json: bool) -> None:
    """Watch the traffic of all workers of a store.

    Workers with slidegate.stats.Statistics, a dashboard or an admin API publish their requests, refusals and bans every
    five seconds. The column shadow_refused counts what shadow rules would have refused. Clients require a dashboard or
    an admin API. Press Ctrl-C to stop.

    \b
    Example: slidegate top --store redis://localhost:6379/0
    """
    live = not (once or as_json) and sys.stdout is not None and sys.stdout.isatty()

    async def watch(limiter: Limiter) -> None:
        while True:
            stats = await _stats(limiter, window)
            if live:
                click.clear()
            show(as_json, [stats], [*_text(stats), "Press Ctrl-C to stop"] if live else _text(stats))
            if not live:
                return
            await asyncio.sleep(every)

    with suppress(KeyboardInterrupt) if live else nullcontext():
        ask(store, watch)


async def _stats(limiter: Limiter, window: str) -> dict[str, Any]:
    """Return the published stats of all workers of a store, and their busiest clients."""
    workers = onlooker(limiter)
    stats = await workers.stats(window)
    sections = await workers.sections(SECTION)
    view = views.Stats.model_validate(stats).model_dump()
    return {
        **view,
        "clients": [
            {"client": one.key, "requests": one.requests, "refused": one.refused}
            for one in ClusterActivity(published_in(sections)).clients[:MAX_CLIENTS]
        ],
    }


def _text(stats: dict[str, Any]) -> Iterator[str]:
    total = stats["total"]
    yield said_of(stats["workers"])
    if not (stats["workers"] or total["passed"] or total["refused"]):
        return  # "0 passed" would be wrong right after the first requests
    yield (
        f"last {stats['window_s']:g} s: {total['passed']:,} passed ({total['qps']:.1f}/s), "
        f"{total['refused']:,} refused, {total['banned']:,} of them by bans"
    )
    for title in ("rule", "route"):
        named = sorted(stats[f"{title}s"].items(), key=lambda pair: (-pair[1]["qps"], pair[0]))[:SHOWN]
        if named:
            yield from ("", *table((title, *_COLUMNS), [{title: name, **traffic} for name, traffic in named]))
    if stats["clients"]:
        yield from ("", *table(("client", "requests", "refused"), stats["clients"][:SHOWN]))
