"""``slidegate top``: the busiest rules, routes and clients, live in the terminal."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import click
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..admin.activity import SECTION, ClusterActivity, parts_of_others
from ..limiter.stats import Traffic
from .output import Output, clean, with_output
from .store import StoreSession, open_session, with_store

SHOWN: Final = 10
MAX_ROWS: Final = 100
_S: Final = 1_000_000
_COLUMNS: Final = ("requests", "refused", "banned")


@click.command()
@with_store
@click.option("--window", default="1m", show_default=True, metavar="DURATION", help="How far back the figures go.")
@click.option("--every", default=2.0, show_default=True, type=click.FloatRange(0.2, 60), help="Seconds between looks.")
@click.option("--once", is_flag=True, help="Show one look and end, as happens where no terminal shows it.")
@with_output(forms=("text", "json"))
def top(out: Output, store: str | None, window: str, every: float, once: bool) -> None:
    """Watch requests, refusals and bans a second, of all workers that publish figures in a store.

    The letter q or Ctrl-C ends it. Clients are shown where workers have a dashboard or an admin API.

    \b
    Example: slidegate top --store redis://localhost:6379/0
    """
    with open_session(store) as session:
        if out.form == "json":
            out.value(figures(session, window))
            return
        if once or not out.is_terminal:
            out.say(*_lines(figures(session, window)))
            return
        with Live(_view(figures(session, window)), console=out.console(), screen=True) as live, _keys() as pressed:
            while not pressed(every):
                live.update(_view(figures(session, window)))


def _lines(shown: dict[str, Any]) -> Iterator[str]:
    yield _head(shown)
    for what, rows in (("rule", shown["rules"]), ("route", shown["routes"])):
        for row in rows[:SHOWN]:
            rates = f"{row['requests']:.1f}/s, refused {row['refused']:.1f}/s, banned {row['banned']:.1f}/s"
            yield f"{what} {row[what]}: {rates}"
    for row in shown["clients"][:SHOWN]:
        yield f"client {row['client']}: {row['requests']} requests in 5 minutes, {row['refused']} refused"


def _head(shown: dict[str, Any]) -> str:
    workers = len(shown["workers"])
    return (
        f"{workers} worker{'s' * (workers != 1)}, last {shown['window_s']:g} s: {shown['requests']:.1f} requests/s, "
        f"{shown['refused']:.1f} refused/s, {shown['banned']:.1f} by bans/s"
    )


def _view(shown: dict[str, Any]) -> Group:
    """Return what the terminal shows. Names come from outside, so they are text and no markup."""
    parts: list[Any] = [Text(clean(_head(shown)))]
    for what, rows in (("rule", shown["rules"]), ("route", shown["routes"])):
        table = Table(what, *(f"{name}/s" for name in _COLUMNS), box=None, pad_edge=False)
        for row in rows[:SHOWN]:
            table.add_row(Text(clean(row[what])), *(f"{row[name]:.1f}" for name in _COLUMNS))
        parts.append(table)
    table = Table("client", "requests", "refused", box=None, pad_edge=False)
    for row in shown["clients"][:SHOWN]:
        table.add_row(Text(clean(row["client"])), str(row["requests"]), str(row["refused"]))
    return Group(*parts, table, Text("q or Ctrl-C ends it", style="dim"))


@contextmanager
def _keys() -> Iterator[Any]:
    """Read single keys; yield a function that waits so many seconds and tells whether q was pressed."""
    try:
        import termios
        import tty
    except ImportError:  # on Windows Ctrl-C ends it
        termios = None  # type: ignore[assignment]
    if termios is None or sys.stdin is None or not sys.stdin.isatty():

        def waited(seconds: float) -> bool:
            time.sleep(seconds)
            return False

        yield waited
        return
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)

    def pressed(seconds: float) -> bool:
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            ready, _, _ = select.select([file], [], [], left_s)
            if ready:
                typed = os.read(file, 64)
                if not typed or b"q" in typed.lower():
                    return True
        return False

    try:
        tty.setcbreak(file)
        yield pressed
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def figures(session: StoreSession, window: str) -> dict[str, Any]:
    """Return the figures of all workers that publish in a store. All rates are a second.

    Args:
        session: The store.
        window: How far back.

    Raises:
        ConfigurationError: The window cannot be used.
        StoreError: The store does not answer.
    """
    limiter = session.limiter
    stats = session.wait(limiter.stats_all(window))
    sections = session.wait(limiter.engine.all_workers.sections(SECTION))
    span_s = stats.total.seen.span_us / _S
    rules = {name: _rates(traffic, span_s) for name, traffic in stats.rules.items()}
    routes = {name: _rates(traffic, span_s) for name, traffic in stats.routes.items()}
    return {
        "window_s": span_s,
        "workers": [worker.name for worker in stats.workers if not worker.here],
        **_rates(stats.total, span_s),
        "rules": _busiest("rule", rules),
        "routes": _busiest("route", routes),
        "clients": [
            {"client": one["key"], "requests": one["requests"], "refused": one["refused"]}
            for one in ClusterActivity(parts_of_others(sections)).clients[:MAX_ROWS]
        ],
    }


def _rates(traffic: Traffic, span_s: float) -> dict[str, float]:
    return {
        "requests": round((traffic.passed + traffic.refused) / span_s, 3),
        "refused": round(traffic.refused / span_s, 3),
        "banned": round(traffic.banned / span_s, 3),
    }


def _busiest(what: str, rates: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    names = sorted(rates, key=lambda name: (-rates[name]["requests"], name))
    return [{what: name, **rates[name]} for name in names[:MAX_ROWS]]
