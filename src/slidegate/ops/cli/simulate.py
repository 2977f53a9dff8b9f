"""``slidegate simulate`` replays access logs against limits, ``slidegate suggest`` shows how busy clients were."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Final

import click
from starlette.routing import Router

from ... import RateLimitMiddleware, Rule
from ...web.endpoints import rules_of_route
from ...web.routes import mounted_routes
from ..replay.logs import NO_TIME, AccessLogs
from ..replay.replay import Replay, nothing
from ..replay.report import QUANTILES, Simulation, measure
from ..rows import listed, share, span, time_of
from .check import applications_in, imported
from .main import middleware_of, note, program, show, table, with_json

MANY_REQUESTS: Final = 100
"""From this number of requests, a single client is probably a proxy."""
_RULE_COLUMNS: Final = ("rule", "kind", "requests", "refused", "clients refused")
_REGEX: Final = """--regex '(?P<client>\\S+) \\[(?P<time>[^]]+)\\] "(?P<request>[^"]*)" (?P<status>\\d+)'"""
_OTHER_FORMAT: Final = f"for another format use {_REGEX}"
_ADD_A_TIME: Final = (
    "uvicorn logs no time: start it with --log-config and a file whose formatter of uvicorn.access has "
    '"fmt": "%(asctime)s %(client_addr)s - \\"%(request_line)s\\" %(status_code)s"; ' + _OTHER_FORMAT
)


with_log = click.argument("log", nargs=-1, required=True)
"""Adds the files to a command, as the parameter `log`."""
with_regex = click.option(
    "--regex", metavar="REGEX", help="Other lines, by the groups time, client, request and status."
)
"""Adds the option ``--regex`` to a command."""


@program.command()
@with_log
@with_regex
@click.option("--app", metavar="MODULE:APP", help="An application; it is imported and not called.")
@click.option("--rules", metavar="FILE", help="A configuration file.")
@click.option("--limit", metavar="LIMITS", multiple=True, help='The limits of each client: "60/minute; 1000/hour".')
@with_json
def simulate(
    log: tuple[str, ...], regex: str | None, rules: str | None, app: str | None, limit: Sequence[str], as_json: bool
) -> None:
    """Replay access logs, and show what limits would have refused.

    Each logged request is sent to the real middleware, at its logged time. The limits are those of --limit, of a
    configuration file (--rules), or of an application (--app). LOG may be compressed with gzip; - is stdin.

    \b
    Example: slidegate simulate access.log --limit "60/minute; 1000/hour"
    """
    logs = AccessLogs(log, regex)
    if [limit or None, rules, app].count(None) != 2:  # without --limit its values are ()
        raise click.UsageError('expected --limit "60/minute", --rules slidegate.toml or --app main:app, one of them')
    if app is not None:
        around = _middlewares_around(imported(app))
        if not around:
            raise click.ClickException(
                "the application has no RateLimitMiddleware around all of its routes; write its rules to a file for "
                "--rules"
            )
        replay = Replay(around)
    elif rules is not None:
        replay = Replay([middleware_of(rules)])
    else:
        replay = Replay([RateLimitMiddleware(nothing, limits=limit)])
    if replay.unwaited:
        note(f"waits and permits cannot be replayed and are ignored: {', '.join(replay.unwaited)}")
    if replay.keyed:
        note(f"where the log lacks what a rule counts by, the application counts otherwise: {', '.join(replay.keyed)}")
    if rules is not None and replay.middlewares[0].policy.rules.default_rule is not None:
        note("a file contains no routes, so default_limits count all requests of a client together; pass --app")
    simulation = Simulation(replay)
    _feed(logs, simulation)
    if simulation.refused_before:
        note(
            f"{simulation.refused_before:,} requests were logged as refused, with 429: the status that they would have "
            "had is not known, so rules with count_if cannot count them"
        )
    value = simulation.value()
    show(as_json, [value], _simulated_text(value))


def _simulated_text(value: dict[str, Any]) -> Iterator[str]:
    yield (
        f"{value['requests']:,} requests of {value['clients']:,} clients, "
        f"{time_of(value['from'])} to {time_of(value['until'])}"
    )
    yield (
        f"{value['passed']:,} passed, {_part(value['refused'], value['requests'])} refused, "
        f"of {_part(value['refused_clients'], value['clients'])} clients"
    )
    yield ""
    yield from table(_RULE_COLUMNS, [{**row, "clients refused": row["refused_clients"]} for row in value["rules"]])
    if value["most_refused"]:
        yield from ("", "Refused most often", *table(("client", "requests", "refused"), value["most_refused"]))


@program.command()
@with_log
@with_regex
@with_json
def suggest(log: tuple[str, ...], regex: str | None, as_json: bool) -> None:
    """Show how busy clients were, and what limits would have refused.

    The busiest minute of each client, as quantiles over all clients, and what a few limits would have refused. It does
    not know which clients are honest: choose a limit that refuses only those that you would refuse.
    LOG may be compressed with gzip; - is stdin.

    \b
    Example: slidegate suggest access.log
    """
    counting_nothing = RateLimitMiddleware(nothing, rules=[Rule("*", exempt=True)])
    simulation = Simulation(Replay([counting_nothing]))
    _feed(AccessLogs(log, regex), simulation)
    value = measure(simulation.clients)
    show(as_json, [value], _suggested_text(value))


def _suggested_text(value: dict[str, Any]) -> Iterator[str]:
    yield f"{value['requests']:,} requests of {value['clients']:,} clients in {span(value['span_s'])}"
    yield from ("", "Busiest minute of each client", *table((*QUANTILES, "most"), [value]))
    rows = []
    for tried in value["would_refuse"]:
        parts = {name: _part(tried[name], value[name]) for name in ("clients", "requests")}
        rows.append({**tried, **parts})
    yield from ("", "What limits would have refused", *table(("limit", "clients", "requests"), rows))


def _part(part: int, whole: int) -> str:
    """Return a number with its share in percent."""
    return f"{part:,} ({share(part, whole)})"


# -- applications and logs ---------------------------------------------------------------------------------------------


def _middlewares_around(app: Any) -> list[RateLimitMiddleware]:
    """Return the middlewares around all of an application, from the outside in."""
    around = list[RateLimitMiddleware]()
    within = 0
    is_routed = False
    for thing in applications_in(app):
        is_routed = is_routed or isinstance(thing, Router)
        if not isinstance(thing, RateLimitMiddleware):
            continue
        if is_routed:
            within += 1
        else:
            around.append(thing)
    if within:
        note(f"{within} middlewares of routes or mounted applications are not replayed")
    limited = [route.label for route in mounted_routes(app) if rules_of_route(route)]
    if limited:
        note(f"limits at endpoints are not replayed: {listed(limited)}")
    return around


def _feed(logs: AccessLogs, simulation: Simulation) -> None:
    """Pass all records to a simulation, and check that its numbers can mean something.

    Raises:
        click.ClickException: They cannot: there is no request, most lines cannot be read, or the clients are none.
    """

    async def feed() -> None:
        for record in logs:
            if record.method:
                await simulation.add(record)

    asyncio.run(feed())
    _check_counts(logs, simulation)


def _check_counts(logs: AccessLogs, simulation: Simulation) -> None:
    """Raise if counts would mean nothing, and note what they leave out."""
    unreadable = logs.unreadable
    clients = len(simulation.clients)
    records = logs.lines - unreadable
    problem = f"{unreadable:,} of {logs.lines:,} lines cannot be read; {logs.example}"
    if unreadable > records:
        remedy = _OTHER_FORMAT
        if NO_TIME in logs.example:
            remedy = _ADD_A_TIME
        raise click.ClickException(f"{problem}; {remedy}")
    if not clients:
        raise click.ClickException(f"none of {records:,} records is an HTTP request that limits count")
    if unreadable:
        note(problem)
    if logs.late:
        note(f"{logs.late:,} records are too far out of order; each counts at the time of the record before it")
    if records > simulation.requests:
        note(f"{records - simulation.requests:,} records are no HTTP requests, and are not counted")
    if clients == 1 and simulation.requests >= MANY_REQUESTS:
        note(f"all requests come from {listed(simulation.clients)}; if that is a proxy, log the address of the client")
