"""``slidegate simulate`` replays access logs against limits; ``slidegate suggest`` finds numbers for limits in them."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import click

from ... import BanPolicy, ConfigurationError, RateLimitMiddleware
from ..replay import AccessLogs, Measured, Replay, Simulated
from ..replay.logs import NO_TIME, LogCounts
from ..replay.report import Measure
from .check import imported, middlewares_in
from .main import failed, middleware_of, note, show, span_of, table, time_of, with_json

MAX_SHOWN: Final = 20
"""The most rows of a table as text; JSON has all."""
MANY_REQUESTS: Final = 100
"""The number of requests from which on the number of clients tells whether they are clients."""
TOO_MANY_CLIENTS: Final = 0.9
"""The share of clients in requests from which on a result means nothing."""
_MAX_LAYERS: Final = 100
_BELOW: Final = ("middleware_stack", "asgi_app", "asgi_handler", "app")
"""The attributes in which Starlette, Quart, Litestar and middlewares keep the next layer."""
_REGEX: Final = """--regex '(?P<client>\\S+) \\[(?P<time>[^]]+)\\] "(?P<request>[^"]*)" (?P<status>\\d+)'"""
_OTHER_FORMAT: Final = f"for another format use {_REGEX}, or --fields for JSON"
_ADD_A_TIME: Final = (
    "uvicorn logs no time: start it with --log-config and a file whose formatter of uvicorn.access has "
    '"fmt": "%(asctime)s %(client_addr)s - \\"%(request_line)s\\" %(status_code)s"; ' + _OTHER_FORMAT
)
_SHADOW: Final = "shadow = true  # reports and never refuses; delete this line to enforce the limits"


def with_logs(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the arguments that describe logs, and where rules come from, to a command."""
    for option in (
        click.option("--fields", metavar="NAMES", help="JSON: time=ts,client=http.ip,path=uri,status=code; or caddy."),
        click.option("--regex", metavar="REGEX", help="Other lines, by the groups time, client, request and status."),
        click.option("--app", metavar="MODULE:APP", help="An application; it is imported and not called."),
        click.option("--rules", metavar="FILE", help="A configuration file."),
        click.argument("log", nargs=-1, required=True),
    ):
        command = option(command)
    return command


@click.command()
@with_logs
@click.option("--limit", metavar="LIMITS", help='The limits of each client: "60/minute; 1000/hour".')
@click.option("--ban-after", metavar="LIMIT", help='With --limit: ban a client after this many refusals, "20/10m".')
@with_json
def simulate(
    log: tuple[str, ...],
    rules: str | None,
    app: str | None,
    limit: str | None,
    ban_after: str | None,
    as_json: bool,
    **formats: str | None,
) -> None:
    """Replay access logs, and show what limits would have refused.

    Each logged request is sent to the real middleware, at its logged time. The limits are those of --limit, of a
    configuration file (--rules), or of an application (--app). LOG may be compressed with gzip; - is stdin.

    \b
    Example: slidegate simulate access.log --limit "60/minute" --ban-after 20/10m
    """
    logs = AccessLogs(log, **formats)
    if sum(option is not None for option in (limit, rules, app)) != 1:
        raise click.UsageError('expected --limit "60/minute", --rules slidegate.toml or --app main:app, one of them')
    if limit is not None:
        replay = Replay.of(limits=limit, bans=None if ban_after is None else BanPolicy(ban_after))
    elif ban_after is not None:
        raise click.UsageError("--ban-after requires --limit; with --rules or --app, write bans there")
    else:
        replay = _replay_of(middlewares_around(rules, None if app is None else _application(app)), rules)
    simulated = Simulated(replay)
    _read(logs, simulated)
    value = simulated.value()
    show(as_json, [value], _simulated_text(value))


def _replay_of(middlewares: Sequence[RateLimitMiddleware], rules: str | None) -> Replay:
    if not middlewares:
        raise click.ClickException(
            "the application has no RateLimitMiddleware around all of its routes; write its rules to a file for --rules"
        )
    replay = Replay(middlewares)
    if replay.unwaited:
        note(f"waits and permits cannot be replayed and are ignored: {', '.join(replay.unwaited)}")
    if rules is not None and middlewares[0].default_limits:
        note("a file contains no routes, so default_limits count all requests of a client together; pass --app")
    return replay


def _simulated_text(value: dict[str, Any]) -> Iterator[str]:
    requests, clients = value["requests"], value["clients"]
    yield f"{requests:,} requests of {clients:,} clients, {time_of(value['from'])} to {time_of(value['until'])}"
    yield (
        f"{value['passed']:,} passed, {_part(value['refused'], requests)} refused, "
        f"of {_part(value['refused_clients'], clients)} clients"
    )
    yield ""
    rows = [{**row, "clients refused": row["refused_clients"]} for row in value["rules"]]
    yield from table(("rule", "kind", "requests", "refused", "clients", "clients refused"), rows)
    if value["most_refused"]:
        yield from ("", "Refused most often, and their first refusals")
        refused = [{**row, "at": time_of(row["at"])} for row in value["most_refused"]]
        yield from table(("client", "refused", "at", "request", "rule"), refused)


@click.command()
@with_logs
@click.option("--toml", "as_toml", is_flag=True, help="Write only the suggested limits, as a configuration file.")
@with_json
def suggest(
    log: tuple[str, ...],
    rules: str | None,
    app: str | None,
    as_toml: bool,
    as_json: bool,
    **formats: str | None,
) -> None:
    """Show how busy clients were, and what limits would have refused.

    For all requests, and for each rule of a configuration file (--rules) or each route of an application (--app): the
    busiest ten seconds, minute and hour of each client, as quantiles over all clients, and what a few round numbers
    would have refused. LOG may be compressed with gzip; - is stdin.

    \b
    Example: slidegate suggest access.log --toml > slidegate.toml
    """
    logs = AccessLogs(log, **formats)
    if (rules is not None and app is not None) or (as_toml and as_json):
        raise click.UsageError("expected --rules or --app, and --toml or --json, not both")
    served = None if app is None else _application(app)
    middlewares = middlewares_around(rules, served)
    measured = Measured(middlewares[0] if middlewares else None, served)
    _read(logs, measured)
    measures = [(measure, measure.value()) for measure in measured.measures()]
    times_us = measured.clients.values()
    span = span_of(max(times[-1] for times in times_us) - min(times[0] for times in times_us))
    headline = f"{measured.requests:,} requests of {len(measured.clients):,} clients in {span}"
    toml = _toml(headline, measures)
    found = {"requests": measured.requests, "clients": len(measured.clients), "rules": [value for _, value in measures]}
    show(as_json, [found], toml if as_toml else (headline, *_suggested_text(measures), "", *toml))


def _suggested_text(measures: Sequence[tuple[Measure, dict[str, Any]]]) -> Iterator[str]:
    for measure, value in measures[:MAX_SHOWN]:
        yield from ("", f"{value['rule']}: {value['requests']:,} requests of {value['clients']:,} clients", "")
        yield from table(tuple(value["busiest"][0]), value["busiest"])
        yield from (
            "",
            "Requests of clients in their busiest minute",
            *table(("requests", "clients", ""), measure.bars()),
        )
        rows = [
            {
                "limit": row["limits"],
                "would refuse clients": _part(row["clients"], value["clients"]),
                "requests": _part(row["requests"], value["requests"]),
            }
            for row in value["would_refuse"]
        ]
        yield from ("", *table(("limit", "would refuse clients", "requests"), rows))
    if len(measures) > MAX_SHOWN:
        yield from ("", f"{len(measures) - MAX_SHOWN} more are in the result of --json")


def _toml(headline: str, measures: Sequence[tuple[Measure, dict[str, Any]]]) -> Iterator[str]:
    """Yield a configuration file with the suggested limits, in shadow."""
    yield f"# {headline}."
    yield "# Each limit is twice what 99.9 % of the clients did not exceed; below 1,000 clients, twice the largest."
    for measure, value in measures:
        subject, found = measure.subject, value["suggested"]
        yield from ("", f"# Would have refused {found['clients']:,} of {value['clients']:,} clients.")
        if not subject.paths or subject.has_key:
            why = "has a key of its own" if subject.has_key else "has no path that a rule can name"
            yield f"# {subject.label} {why}; its limits would be {found['limits']}"
            continue
        yield "[[rules]]"
        yield f"path = {_quoted(subject.paths[0]) if len(subject.paths) == 1 else _listed(subject.paths)}"
        if subject.methods:
            yield f"methods = {_listed(subject.methods)}"
        yield from (f'limits = "{found["limits"]}"', _SHADOW)


def _quoted(text: str) -> str:
    """Return a text as a TOML string, with control characters escaped."""
    plain = (c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in text)
    return f'"{"".join(plain)}"'


def _listed(texts: Sequence[str]) -> str:
    return f"[{', '.join(map(_quoted, texts))}]"


def _part(part: int, whole: int) -> str:
    return f"{part:,} ({100 * part / max(whole, 1):.2g} %)"


# -- what both commands read -------------------------------------------------------------------------------------------


def _application(name: str) -> Any:
    sys.path.insert(0, os.getcwd())
    return imported(name, factory=False)


def middlewares_around(rules: str | None, app: Any) -> list[RateLimitMiddleware]:
    """Return the middleware of a file, or those around an application from the outside in; empty without either."""
    if rules is not None:
        return [middleware_of(rules)]
    found = [] if app is None else middlewares_in(app)
    around = [layer for layer in _layers(app) if isinstance(layer, RateLimitMiddleware)]
    if len(found) > len(around):
        note(f"{len(found) - len(around)} middlewares of routes or mounted applications are not replayed")
    return around


def _layers(app: Any) -> Iterator[Any]:
    """Yield an application and what each layer passes all requests to, from the outside in."""
    for _ in range(_MAX_LAYERS):
        if app is None:
            return
        yield app
        app = next((below for name in _BELOW if (below := getattr(app, name, None)) is not None), None)


def _read(logs: AccessLogs, target: Simulated | Measured) -> None:
    """Pass all records to a target, and check that its numbers can mean something.

    Raises:
        click.ClickException: They cannot: there is no request, most lines cannot be read, or the clients are none.
    """

    async def read() -> None:
        for record in logs:
            await target.add(record)

    try:
        asyncio.run(read())
    except ConfigurationError as error:
        raise failed(error) from error
    _check(logs.counts, target)
    _note_omissions(logs.counts, target)


def _check(counts: LogCounts, target: Simulated | Measured) -> None:
    unreadable, clients = counts.unreadable.total(), len(target.clients)
    if unreadable > counts.records:
        remedy = _ADD_A_TIME if counts.unreadable.most_common(1)[0][0] == NO_TIME else _OTHER_FORMAT
        raise click.ClickException(
            f"{unreadable:,} of {counts.lines:,} lines cannot be read; {counts.example}; {remedy}"
        )
    if not counts.records:
        raise click.ClickException("the log is empty")
    if not target.requests:
        raise click.ClickException(f"none of {counts.records:,} records is an HTTP request")
    if clients > TOO_MANY_CLIENTS * target.requests and target.requests >= MANY_REQUESTS:
        raise click.ClickException(
            f"{target.requests:,} requests come from {clients:,} clients, such as {next(iter(target.clients))}, so "
            f"limits for each client mean nothing; if these are no clients, name the part of a line that is: {_REGEX}; "
            "if they are, pass a longer log"
        )


def _note_omissions(counts: LogCounts, target: Simulated | Measured) -> None:
    if counts.unreadable:
        note(f"{counts.unreadable.total():,} of {counts.lines:,} lines cannot be read; {counts.example}")
    if counts.late:
        note(f"{counts.late:,} records are too far out of order; each counts at the time of the record before it")
    if target.no_requests:
        note(f"{target.no_requests:,} records are no HTTP requests, and are not counted")
    if len(target.clients) == 1 and target.requests >= MANY_REQUESTS:
        note(f"all requests come from {next(iter(target.clients))}; if that is a proxy, log the address of the client")
