"""``slidegate suggest``: suggests limits from access logs, as a configuration to paste."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import click

from ..simulation.suggest import HEADROOM, PAGE_LOAD, SuggestedRule, Suggestion, Survey
from .log_options import Logs, share_of, with_logs
from .output import show, with_format

_SHADOW: Final = "shadow = true  # counts but never refuses; delete this line to enforce the rule"


@click.command()
@click.option("--touch", default="0.1%", show_default=True, metavar="SHARE", help="Clients that limits may refuse.")
@click.option(
    "--headroom",
    type=click.FloatRange(1, 1_000),
    default=HEADROOM,
    show_default=True,
    help="The factor between the peaks of the other clients and the limits.",
)
@click.option("--routes", type=click.IntRange(0, 100), default=8, show_default=True, help="Routes with own limits.")
@with_format
@with_logs
def suggest(logs: Logs, touch: str, headroom: float, routes: int, as_json: bool) -> None:
    """Suggest limits from access logs, as TOML to paste.

    The limits would have refused at most a share of the clients. The rules are shadow rules, which never refuse, until
    `shadow` is removed.

    \b
    Example: slidegate suggest access.log --touch 0.1%
    """
    share, clients = share_of(touch), logs.clients
    if logs.records.size_bytes is None:
        raise click.UsageError("suggest reads logs twice, which a pipe or standard input does not allow; pass files")
    survey = Survey(clients)
    logs.read("Collecting clients and routes", survey.add)
    logs.note_omissions()
    suggestion = Suggestion(survey, share, headroom, routes)
    logs.read("Measuring peaks", suggestion.add)
    rules, warnings = suggestion.rules(), survey.warnings(share)
    seen = {
        "requests": clients.requests,
        "clients": len(clients.tallies),
        "refused": len(frozenset[str]().union(*(rule.refused for rule in rules))),
        "touch": share,
        "headroom": headroom,
    }
    shown = [{**rule._asdict(), "refused": len(rule.refused)} for rule in rules]
    show(as_json, [{**seen, "rules": shown, "warnings": warnings}], _text(seen, warnings, rules, clients.header))


def _text(
    seen: Mapping[str, float], warnings: Sequence[str], rules: Sequence[SuggestedRule], header: str | None
) -> Iterator[str]:
    requests, clients, share = seen["requests"], seen["clients"], 100 * seen["touch"]
    yield f"# {requests:,} requests of {clients:,} clients. Each limit is {seen['headroom']:g} times the highest peak"
    yield f"# without {share:g}% of the clients as outliers, and at least {PAGE_LOAD}, the requests of one page load."
    yield f"# Enforced together, these rules would have refused {seen['refused']:,} of the clients."
    yield from (f"# Warning: {warning}." for warning in warnings)
    if not rules:
        yield "# No limits: --touch allows every client to be refused, so there are no peaks to measure."
    for rule in rules:
        yield from _toml(rule, header)


def _toml(rule: SuggestedRule, header: str | None) -> Iterator[str]:
    peaks = ", ".join(f"{amount} in {window}" for window, amount in rule.median.items())
    yield ""
    yield f"# Would have refused {len(rule.refused):,} of {rule.clients:,} clients ({rule.requests:,} requests)."
    yield f"# Median of the clients' peaks: {peaks}."
    yield "[[rules]]"
    yield _SHADOW
    yield f"path = {_quoted(rule.path)}"
    yield f'limits = "{rule.limits_text}"'
    if header is not None:
        yield f"key = {{ header = {_quoted(header)} }}"


def _quoted(text: str) -> str:
    """Return a text as a TOML string, with control characters escaped."""
    plain = (c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in text)
    return f'"{"".join(plain)}"'
