"""``slidegate suggest``: limits and bans that fit the requests of access logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import click
import tomli_w

from ..core.errors import ConfigurationError
from ..simulation.logged_requests import Clients
from ..simulation.suggestion import BanFound, RuleFound, Suggestion, Survey
from .logs import Logs, header_of, log_options, quiet_gate, share_of
from .output import Output, with_output


@click.command()
@click.option("--touch", default="0.1%", show_default=True, metavar="SHARE", help="Clients that limits may touch.")
@click.option("--key", default="ip", show_default=True, metavar="KEY", help="Who is counted: ip, or header:NAME.")
@click.option("--routes", type=click.IntRange(0, 100), default=8, show_default=True, help="Routes with own limits.")
@log_options
@with_output(forms=("text", "json"))
def suggest(out: Output, /, touch: str, key: str, routes: int, **logs: Any) -> None:
    """Work out limits from access logs that touch at most a share of clients, as TOML to paste."""
    share, named = share_of(touch), header_of(key)
    if "-" in logs["log"]:
        raise ConfigurationError("suggest reads its logs twice, and standard input only once; give it a file")
    reading = Logs(**logs)
    clients = Clients(named)
    with quiet_gate():
        survey = Survey(clients)
        with closing(reading.read(out, "Looking for clients and routes")) as records:
            for record in records:
                survey.add(record)
        reading.remarks(out)
        suggestion = Suggestion(survey, clients, share, routes)
        with closing(reading.read(out, "Counting peaks")) as records:
            for record in records:
                suggestion.add(record)
    rules, bans, warnings = suggestion.rules(), suggestion.bans(), survey.warnings(share)
    if out.form == "json":
        out.value(
            {
                "requests": survey.requests,
                "clients": len(survey.clients),
                "touch": share,
                "rules": [rule._asdict() for rule in rules],
                "bans": None if bans is None else bans._asdict(),
                "warnings": warnings,
            }
        )
        return
    out.write(_toml(survey, rules, bans, warnings, touch, named))


def _toml(
    survey: Survey, rules: list[RuleFound], bans: BanFound | None, warnings: list[str], touch: str, header: str | None
) -> Iterator[str]:
    clients = f"{len(survey.clients):,} clients"
    yield f"# {survey.requests:,} requests of {clients}; limits may touch {touch.strip()} of them."
    yield from (f"# Warning: {warning}." for warning in warnings)
    for rule in rules:
        yield ""
        peaks = ", ".join(f"{amount} in {window}" for window, amount in rule.median.items())
        counts = f"{rule.requests:,} requests of {rule.clients:,} clients; {rule.touched:,} touched"
        yield f"# {counts}; median peak: {peaks}."
        table: dict[str, Any] = {"path": rule.path}
        table["limits"] = "; ".join(f"{amount}/{window}" for window, amount in rule.limits.items())
        if header is not None:
            table["key"] = {"header": header}
        yield "[[rules]]"
        yield from tomli_w.dumps(table).splitlines()
    yield ""
    if bans is None:
        yield "# No count of failures tells the scanners of this log from its other clients, or it has no scanners."
        return
    yield f"# Catches {bans.caught:,} of {bans.scanners:,} clients that look like scanners, and nobody else."
    yield from tomli_w.dumps(
        {
            "bans": {"scanners": {"after": bans.after, "signals": {bans.signal: 1}}},
        }
    ).splitlines()
