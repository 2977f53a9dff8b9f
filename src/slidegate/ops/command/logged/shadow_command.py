"""``slidegate shadow report``: what turning shadow rules on would do, from recorded events."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

import click

from ....core.errors import ConfigurationError
from ..output import Output, with_output

_SUBJECTS: Final = {"shadow_refused": "rule", "shadow_banned": "policy"}


@click.group()
def shadow() -> None:
    """Look at what shadow rules and policies would do."""


@shadow.command()
@click.argument("events", nargs=-1, required=True)
@with_output()
def report(out: Output, /, events: tuple[str, ...]) -> None:
    """Add up events that were logged as JSON lines: requests and clients that shadow rules would refuse."""
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
