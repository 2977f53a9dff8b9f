"""``slidegate top``: the busiest rules, routes and clients, live in the terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import click
from rich.live import Live
from rich.text import Text

from ..admin import views
from ..admin.activity import SECTION, ClusterActivity, parts_of_others
from ..limiter import Limiter
from ..stats.statistics import onlooker
from .report import Report, Reporter, Result, Table, with_report
from .store import open_limiter, with_store

SHOWN: Final = 10
MAX_CLIENTS: Final = 100
_COLUMNS: Final = ("qps", "passed", "refused", "banned", "shadow_refused", "p95_ms")


@click.command()
@with_store
@click.option("--window", default="1m", show_default=True, metavar="DURATION", help="How far back the stats go.")
@click.option("--every", default=2.0, show_default=True, type=click.FloatRange(0.2, 60), help="Seconds between looks.")
@click.option("--once", is_flag=True, help="Show one look and end, as happens where no terminal shows it.")
@with_report("json")
async def top(out: Reporter, store: str | None, window: str, every: float, once: bool) -> Result:
    """Watch requests, refusals and bans of all workers that publish stats in a store.

    What shadow rules would have refused is in the column shadow_refused. Clients are shown where workers have a
    dashboard or an admin API. Ctrl-C ends it.

    \b
    Example: slidegate top --store redis://localhost:6379/0
    """
    async with open_limiter(store) as limiter:
        if not once and out.is_live:
            with Live(screen=True, auto_refresh=False) as live:
                while True:
                    # Text and no markup: names come from outside.
                    lines = out.lines(_text(await _stats(limiter, window)))
                    live.update(Text("\n".join((*lines, "", "Ctrl-C ends it"))), refresh=True)
                    await asyncio.sleep(every)
        stats = await _stats(limiter, window)
    return Report(stats, _text(stats))


async def _stats(limiter: Limiter, window: str) -> dict[str, Any]:
    """Return the stats of all workers that publish in a store, and their busiest clients."""
    workers = onlooker(limiter)
    stats = (await workers.recent(window)).stats(await workers.workers())
    sections = await workers.sections(SECTION)
    view = views.Stats.model_validate(stats).model_dump()
    return {
        **view,
        "clients": [
            {"client": one.key, "requests": one.requests, "refused": one.refused}
            for one in ClusterActivity(parts_of_others(sections)).clients[:MAX_CLIENTS]
        ],
    }


def _text(stats: dict[str, Any]) -> Iterator[str | Table]:
    workers, total = len(stats["workers"]), stats["total"]
    yield (
        f"{workers} worker{'s' * (workers != 1)}, last {stats['window_s']:g} s: {total['passed']:,} passed "
        f"({total['qps']:.1f}/s), {total['refused']:,} refused, {total['banned']:,} of them by bans"
    )
    for title in ("rule", "route"):
        named = sorted(stats[f"{title}s"].items(), key=lambda pair: (-pair[1]["qps"], pair[0]))[:SHOWN]
        if named:
            yield from ("", Table((title, *_COLUMNS), [{title: name, **traffic} for name, traffic in named]))
    if stats["clients"]:
        yield from ("", Table(("client", "requests", "refused"), stats["clients"][:SHOWN]))
