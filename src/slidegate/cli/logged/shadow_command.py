"""``slidegate shadow report``: what turning shadow rules on would do, from recorded events or published figures."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from ...core.errors import ConfigurationError
from ..output import Output, with_output
from ..stored.opened import opened, with_store

_WINDOW: Final = "1h"
_SUBJECTS: Final = {"shadow_refused": "rule", "shadow_banned": "policy"}


@click.group()
def shadow() -> None:
    """Look at what shadow rules and policies would do."""


@shadow.command()
@click.argument("events", nargs=-1)
@with_store
@click.option("--window", metavar="DURATION", help=f"With --store: how far back the figures go.  [default: {_WINDOW}]")
@with_output()
def report(out: Output, /, events: tuple[str, ...], store: str | None, window: str | None) -> None:
    """Add up what shadow rules would have refused: from events logged as JSON lines, or from published figures.

    EVENTS are files of events, which know the clients. --store reads the figures that workers publish in a store.
    """
    named = click.get_current_context().get_parameter_source("store") is ParameterSource.COMMANDLINE
    if events and (named or window is not None):
        raise click.UsageError("--store and --window are about published figures; give them, or files of events")
    if events:
        _of_events(out, events)
    else:
        _of_store(out, store, _WINDOW if window is None else window)


def _of_store(out: Output, url: str | None, window: str) -> None:
    """Write what the published figures say. They count the refusals of a shadow rule, and not who was refused."""
    if url is None:
        raise click.UsageError("give files of events, or --store URL")
    with opened(url) as at:
        stats = at.wait(at.limiter.stats_all(window))
    passed, asked = stats.total.passed, stats.total.passed + stats.total.refused
    refusals = {name: traffic.shadow_refused for name, traffic in stats.rules.items() if traffic.shadow_refused}
    if not asked and not refusals:
        out.note(f"no figures of the last {window} are in this store")
    elif not refusals:
        out.note(f"no shadow rule would have refused one of the last {passed:,} requests")
    rows = [
        (name, refusals[name], passed, round(min(refusals[name] / passed, 1.0), 6) if passed else 0.0)
        for name in sorted(refusals, key=lambda name: (-refusals[name], name))
    ]
    if out.form == "text":
        rows = [(name, f"{count:,}", f"{passed:,}", f"{share:.2%}") for name, count, passed, share in rows]  # type: ignore[misc]
    out.rows(("rule", "would_refuse", "passed", "share"), rows)


def _of_events(out: Output, events: tuple[str, ...]) -> None:
    requests: Counter[tuple[str, str]] = Counter()
    keys: dict[tuple[str, str], set[str]] = {}
    left_out = lines = records = 0
    for name in events:
        with Path(name).open(encoding="utf-8", errors="replace") as file:
            for line in file:
                lines += 1
                event = _event(line)
                if event is None:
                    continue
                records += 1
                kind = str(event["kind"])
                if kind not in _SUBJECTS:
                    continue
                subject = kind, str(event.get(_SUBJECTS[kind], ""))
                suppressed = event.get("suppressed", 0)
                more = suppressed if isinstance(suppressed, int) else 0
                requests[subject] += 1 + more
                left_out += more
                keys.setdefault(subject, set()).add(str(event.get("key", "")))
    if not records:
        raise ConfigurationError(
            f"{events[0]}: none of {lines:,} lines is an event; "
            'expected JSON lines such as {"kind": "shadow_refused", ...}'
        )
    if left_out:
        out.note(f"{left_out:,} events were left out of the log; their clients are not known")
    rows = [(kind, subject, count, len(keys[kind, subject])) for (kind, subject), count in requests.most_common()]
    out.rows(("kind", "name", "times", "clients"), rows)


def _event(line: str) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("kind"), str) else None
