"""``slidegate suggest``: limits and bans that fit the requests of access logs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import tomli_w

from ..core.errors import ConfigurationError
from ..simulation.clients import Clients
from ..simulation.suggest import BanSurvey, SuggestedPolicy, SuggestedRule, Suggestion, Survey
from .logs import Logs, check_header, header_of, log_options, share_of
from .report import Report, Reporter, Result, silent_log, with_report


@click.command()
@click.option("--touch", default="0.1%", show_default=True, metavar="SHARE", help="Clients that limits may touch.")
@click.option("--key", default="ip", show_default=True, metavar="KEY", help="Who is counted: ip, or header:NAME.")
@click.option("--routes", type=click.IntRange(0, 100), default=8, show_default=True, help="Routes with own limits.")
@log_options
@with_report("json")
def suggest(out: Reporter, /, touch: str, key: str, routes: int, **logs: Any) -> Result:
    """Work out limits from access logs that touch at most a share of clients, as TOML to paste.

    \b
    Example: slidegate suggest access.log --touch 0.1%
    """
    share = share_of(touch)
    clients = Clients(header_of(key))
    if "-" in logs["log"]:
        raise ConfigurationError("suggest reads its logs three times, and standard input only once; give it a file")
    reading = Logs(**logs)
    with silent_log():
        survey = Survey(clients)
        reading.read(out, "Looking for clients and routes", survey.add)
        reading.remarks(out)
        check_header(out, clients)
        suggestion = Suggestion(survey, share, routes)
        reading.read(out, "Counting peaks", suggestion.add)
        rules = suggestion.rules()
        failures = BanSurvey(rules, survey)
        reading.read(out, "Counting failures", failures.add)
    bans, warnings = failures.policy(), survey.warnings(share)
    value = {
        "requests": clients.requests,
        "clients": len(clients.tallies),
        "touch": share,
        "rules": [rule._asdict() for rule in rules],
        "bans": None if bans is None else bans._asdict(),
        "warnings": warnings,
    }
    return Report(value, _toml(clients, rules, bans, warnings, touch))


def _toml(
    clients: Clients, rules: list[SuggestedRule], bans: SuggestedPolicy | None, warnings: list[str], touch: str
) -> Iterator[str]:
    seen = f"{clients.requests:,} requests of {len(clients.tallies):,} clients"
    yield f"# {seen}; limits may touch {touch.strip()} of them."
    yield from (f"# Warning: {warning}." for warning in warnings)
    if not rules:
        yield "# No limits: every client may be touched, so nobody is left who could say what is usual."
    for rule in rules:
        yield ""
        peaks = ", ".join(f"{amount} in {window}" for window, amount in rule.median.items())
        counts = f"{rule.requests:,} requests of {rule.clients:,} clients; {rule.touched:,} touched"
        yield f"# {counts}; median peak: {peaks}."
        table: dict[str, Any] = {"path": rule.path, "limits": rule.said}
        if clients.header is not None:
            table["key"] = {"header": clients.header}
        yield "[[rules]]"
        yield from tomli_w.dumps(table).splitlines()
    yield ""
    if bans is None:
        yield "# No count of failures tells the scanners of this log from its other clients, or it has no scanners."
        return
    yield f"# Catches {bans.caught:,} of {bans.scanners:,} clients that look like scanners, and nobody else."
    policy = {"after": bans.after, "signals": {bans.signal: 1}}
    yield from tomli_w.dumps({"bans": {"scanners": policy}}).splitlines()
