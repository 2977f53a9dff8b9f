"""Looks at a gate and what it stands among, for what works and is probably not meant."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Scope

from ...core.addresses import IPV6_PREFIX
from ...core.bans.policy import BanPolicy
from ...core.bans.targets import ban_target
from ...core.protocols import Store
from ...limiter import Limiter
from ..keys.client_ip import UNKNOWN_PEER, ClientAddress, is_gone
from ..keys.user import is_known
from ..lists.network_files import AddressList
from ..paths.layers import layers
from ..paths.patterns import PathPattern, compile_pattern
from ..paths.routes import walk
from ..paths.tree import Tree
from ..record import Record
from ..rules.rule import Rule
from .codes import Finding

WATCHED: Final = 1_000
"""How many requests are looked at for what only requests can show."""

_SERVERS: Final = frozenset({"uvicorn", "gunicorn", "granian", "hypercorn", "fastapi"})
_VARIABLES: Final = ("WEB_CONCURRENCY", "UVICORN_WORKERS", "GRANIAN_WORKERS")
_WORKERS: Final = re.compile(r"(?<!\S)(?:--workers(?:=| +)|-w ?)([0-9]{1,6})(?!\S)")
_PARAMETER: Final = re.compile(r"\{\w+(?::(\w+))?\}")
_ALL_BELOW: Final = re.compile(r"([^{]*)\{\w+:path\}")
_OF_THE_CLIENT: Final = re.compile(r"(?:^|\+)(?:header|cookie|query):")
"""In the identity of a key: a value that the client chooses, and not only where another one is missing."""
_PROXY_HEADERS: Final = frozenset({b"x-forwarded-for", b"forwarded"})


@runtime_checkable
class Guard(Protocol):
    """A gate, as another one sees it."""

    @property
    def app(self) -> object:
        """The application that it guards."""

    @property
    def limiter(self) -> Limiter:
        """Where its counts live."""

    @property
    def rules(self) -> Sequence[Rule]:
        """What it holds requests to."""


def examine(
    gate: Guard,
    client: ClientAddress,
    switched_off: str,
    policies: Collection[BanPolicy],
    lists: Mapping[str, AddressList | None],
) -> Iterator[Finding]:
    """Yield what is found about a gate before any request.

    Args:
        gate: The gate.
        client: How it finds the client's address.
        switched_off: What switches it off, if anything does.
        policies: Its ban policies.
        lists: Its block and allow lists, by what they are.
    """
    if switched_off:
        yield Finding("SG110", f"slidegate is switched off ({switched_off}): every request passes")
    for address in (client, *(rule.key for rule in gate.rules)):
        if isinstance(address, ClientAddress):
            yield from _about_address(address)
    where = many_workers(os.environ, sys.argv)
    if where and gate.limiter.per_process:
        yield Finding(
            "SG103",
            f"limits are per process: with {where} a client gets up to that many times each; "
            'LmdbStore counts for all of them: Limiter.from_url("lmdb:///var/lib/app/slidegate")',
        )
    for earlier, later in hidden_rules(gate.rules):
        yield Finding("SG104", f"{later!r} can never apply: {earlier!r} comes first, covers it and ends the list")
    yield from _about_roots(gate)
    yield from _about_layers(gate)
    yield from _about_bans(gate, policies)
    trusted = {} if client.permissive else {"trusted": client.networks}
    for what, given in {**lists, **trusted}.items():
        for found in () if given is None else given.wide_ranges():
            yield Finding("SG114", f"{what} holds everybody from {found}; no registry hands out networks as wide")


def _about_address(client: ClientAddress) -> Iterator[Finding]:
    if client.permissive:
        yield Finding("SG101", "most addresses are trusted proxies, so any client can name itself in a header")
    if client.ipv6_prefix > IPV6_PREFIX:
        yield Finding(
            "SG108",
            f"ipv6_prefix={client.ipv6_prefix}: one customer usually has a whole /64 and can use any number of its "
            "addresses",
        )


def _about_roots(gate: Guard) -> Iterator[Finding]:
    root = Tree(gate.app).root
    for rule in gate.rules if root else ():
        path = next((path for path in rule.paths if rule.exempt and path.startswith(f"{root}/")), None)
        if path is not None:
            yield Finding(
                "SG104",
                f"{path!r} exempts nothing: the application below takes its root_path {root!r} away from paths; write "
                f"{path.removeprefix(root)!r}",
            )


def _about_layers(gate: Guard) -> Iterator[Finding]:
    names = {rule.name for rule in gate.rules} - {None}
    for layer in layers(gate.app):
        if _is_cors(layer):
            yield Finding(
                "SG107",
                "CORSMiddleware stands inside the gate, so scripts in browsers cannot read a 429; add it after "
                "RateLimitMiddleware, and it stands outside",
            )
        if isinstance(layer, Guard):
            for name in sorted(names & {rule.name for rule in layer.rules}, key=str):
                yield Finding(
                    "SG105", f"rule {name!r} stands in two middlewares, one inside the other; it is charged once"
                )
            clocks = {id(limiter.clock) for limiter in (gate.limiter, layer.limiter) if limiter.per_process}
            if len(clocks) > 1:
                yield Finding(
                    "SG106", "two gates, one inside the other, tell the time by different clocks; give both one limiter"
                )


def _about_bans(gate: Guard, policies: Collection[BanPolicy]) -> Iterator[Finding]:
    for policy in policies:
        for path in (signal for signal in policy.signals if isinstance(signal, str) and signal.startswith("/")):
            exempt = _exempting(gate.rules, path)
            if exempt is not None:
                yield Finding("SG112", f"path {path!r} of policy {policy.name!r} never strikes: {exempt!r} exempts it")
            elif _bans_at_once(policy, path) and (label := _served(gate.app, path)):
                yield Finding(
                    "SG112", f"path {path!r} of policy {policy.name!r} bans the application's own visitors: {label}"
                )
    shaken = [policy for policy in policies if policy.key is not None and _OF_THE_CLIENT.search(policy.key.identity)]
    if shaken and not any(_by_address(policy) for policy in policies):
        yield Finding(
            "SG113",
            f"policy {shaken[0].name!r} bans by {shaken[0].key.identity}, which the client chooses, and none bans by "
            "address; add one that does",
        )


def _bans_at_once(policy: BanPolicy, path: str) -> bool:
    weight = policy.signals[path]
    return weight == "ban" or weight >= policy.after.amount


def _by_address(policy: BanPolicy) -> bool:
    return policy.key is None or isinstance(policy.key, ClientAddress)


def _exempting(rules: Sequence[Rule], path: str) -> Rule | None:
    """Return the rule that exempts a path."""
    for rule in rules:
        if rule.final and _ends(rule, path):
            return rule if rule.exempt else None
    return None


def _ends(rule: Rule, path: str) -> bool:
    """Tell whether a rule ends the list for a request that gets a path."""
    about = "GET" in (rule.methods or {"GET"}) and rule.connection != "websocket"
    return about and (not rule.written or any(written.covers(path) for written in rule.written))


def _served(app: object, path: str) -> str:
    """Return what to call the route that is written down for a path, empty if none is.

    A route that takes whatever comes is none: it answers scanners with a page that is for others.
    """
    pattern, _ = compile_pattern(path)
    router = next((layer for layer in layers(app) if hasattr(layer, "routes")), None)
    return next((place.label for place in walk(router) if pattern.match(place.template)), "")


def _is_cors(layer: object) -> bool:
    if isinstance(layer, Starlette):
        # What an application wraps itself in is built at its first request; until then the classes are known.
        classes: list[object] = [wrapping.cls for wrapping in layer.user_middleware]
        return CORSMiddleware in classes
    return isinstance(layer, CORSMiddleware)


def many_workers(environment: Mapping[str, str], arguments: Sequence[str]) -> str:
    """Return what says that several processes serve the application; empty if nothing does."""
    for variable in _VARIABLES:
        value = environment.get(variable, "")
        if value.isascii() and value.isdigit() and int(value) > 1:
            return f"{variable}={value}"
    program = Path(arguments[0]) if arguments else Path()
    shown = shlex.join(arguments[1:]) if {program.stem, program.parent.name} & _SERVERS else ""
    for where, words in (("GUNICORN_CMD_ARGS", environment.get("GUNICORN_CMD_ARGS", "")), ("the command line", shown)):
        counts = _WORKERS.findall(words)
        if counts and int(counts[-1]) > 1:
            return f"--workers {counts[-1]} in {where}"
    return ""


def hidden_rules(rules: Sequence[Rule]) -> Iterator[tuple[Rule, Rule]]:
    """Yield (earlier, later) where the earlier rule ends the list for every request that the later one is about."""
    for place, later in enumerate(rules):
        earlier = next((rule for rule in rules[:place] if rule.final and _covers(rule, later)), None)
        if earlier is not None:
            yield earlier, later


def _covers(earlier: Rule, later: Rule) -> bool:
    methods = frozenset({"GET"}) if later.connection == "websocket" else later.methods
    return (
        (earlier.connection is None or earlier.connection == later.connection)
        and (earlier.methods is None or (methods is not None and methods <= earlier.methods))
        and _covers_path(earlier, later)
    )


def _covers_path(earlier: Rule, later: Rule) -> bool:
    if not earlier.patterns or not later.patterns:
        return not earlier.patterns
    one_by_one = zip(later.paths, later.patterns, strict=True)
    return all(any(_covers_one(earlier, place, *asked) for place in range(len(earlier.paths))) for asked in one_by_one)


def _covers_one(earlier: Rule, place: int, path: str, pattern: PathPattern) -> bool:
    written, (known, _) = earlier.paths[place], earlier.patterns[place]
    if not pattern[1]:
        return known.match(path) is not None
    below = _ALL_BELOW.fullmatch(written)
    if below is not None and path.partition("{")[0].startswith(below[1]):
        return True
    # The names of parameters do not matter.
    return _nameless(written) == _nameless(path)


def _nameless(path: str) -> str:
    return _PARAMETER.sub(lambda found: f"{{{found[1] or 'str'}}}", path)


class Watch:
    """Looks at the first requests, then no more: some things show only there.

    Args:
        client: How the gate finds the client's address.
        policies: Its ban policies.
        store: Where the gate counts.
    """

    def __init__(self, client: ClientAddress, policies: Collection[BanPolicy] = (), store: Store | None = None) -> None:
        self._store = store
        self._trusted = client.trusted
        self._policies = [policy for policy in policies if _by_address(policy)]
        self._left = WATCHED
        self._found: set[str] = set()

    @property
    def over(self) -> bool:
        """Whether enough was seen."""
        return self._left <= 0

    def look(self, scope: Scope) -> Iterator[Finding]:
        """Yield what one request shows, each kind once."""
        self._left -= 1
        evicts = getattr(self._store, "evicts", "")  # known once a connection was made
        if evicts and "SG115" not in self._found:
            self._found.add("SG115")
            yield Finding("SG115", f"{evicts}, and with them limits and bans; set noeviction")
        client = scope.get("client")
        host = (client[0] if client else None) or ""
        if is_gone(scope):
            return
        if not host and "SG109" not in self._found:
            self._found.add("SG109")
            yield Finding("SG109", f"the server names no peer: all such requests are one client, {UNKNOWN_PEER!r}")
        if self._trusted or "SG102" in self._found:
            return
        for name, value in scope["headers"]:
            # A server that reads the header itself has put its address in the peer's place.
            if name in _PROXY_HEADERS and (not host or host.encode() not in value):
                self._found.add("SG102")
                yield Finding(
                    "SG102",
                    f"{name.decode().title()} came with a request and no proxy is trusted: if one stands in front, all "
                    "its clients are counted as one",
                )
                if self._policies and host:
                    yield self._about_bans(host)
                return

    def look_back(self, scope: Scope, record: Record) -> Iterator[Finding]:
        """Yield what a request shows when the application is done with it."""
        if hasattr(record, "userless") and "SG116" not in self._found and is_known(scope):
            self._found.add("SG116")
            yield Finding(
                "SG116",
                "a limit by `user` counted the client's address, because the user was known only afterwards; put "
                "AuthenticationMiddleware further out than the gate, or the limit next to the endpoint: "
                "@RateLimit(..., key=user)",
            )

    def _about_bans(self, host: str) -> Finding:
        """Say what becomes of bans behind a proxy that nobody trusts."""
        met = [policy for policy in self._policies if ban_target(policy, host) is not None]
        if met:
            what = f"policy {met[0].name!r} bans the peer for what one client does: everybody behind it is shut out"
        else:
            what = f"the peer {host} is of a private network, which no policy bans: nobody behind it is ever banned"
        return Finding("SG111", f"if a proxy stands in front, {what}")
