"""Start-up checks of a gate and its neighbours: settings that work but are probably mistakes."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

from starlette.applications import Starlette

from ...core.addresses import IPV6_PREFIX
from ...core.bans.policy import BanPolicy
from ...core.limits import AnyLimit
from ...limiter import Limiter
from ..keys.client_ip import ClientAddress
from ..keys.key import everyone
from ..network_files import AddressList
from ..paths.layers import layers, root_of
from ..paths.patterns import compile_pattern
from ..routes import walk
from ..rules.rule import Rule
from .codes import Finding
from .hidden_rules import hidden_rules
from .workers import many_workers

FEW_PLACES: Final = 100
"""A concurrency limit up to this is taken for one of requests, and not of websockets, of which a process holds more."""

_OF_THE_CLIENT: Final = r"(?:^|\+)(?:header|cookie|query):"
"""Finds in the identity of a key a value that the client chooses, but no fallback of such a kind."""


@runtime_checkable
class Guard(Protocol):
    """The part of a gate that the checks, and other gates, see."""

    @property
    def app(self) -> object:
        """The application that it guards."""

    @property
    def limiter(self) -> Limiter:
        """The limiter that holds its counts."""

    @property
    def rules(self) -> Sequence[Rule]:
        """The rules that it holds requests to."""

    @property
    def default_limits(self) -> Sequence[AnyLimit]:
        """The limits of each route."""


def examine(
    gate: Guard,
    client: ClientAddress,
    switched_off: str,
    policies: Collection[BanPolicy],
    lists: Mapping[str, AddressList | None],
) -> Iterator[Finding]:
    """Yield the findings about a gate before any request.

    Args:
        gate: The gate.
        client: How it finds the client's address.
        switched_off: The setting that switches it off; empty if none does.
        policies: Its ban policies.
        lists: Its block and allow lists, by the names of their options.
    """
    if switched_off:
        yield Finding(
            "SG110",
            f"slidegate is switched off ({switched_off}): every request passes; where that is not meant, take it out",
        )
    for address in (client, *(rule.key for rule in gate.rules)):
        if isinstance(address, ClientAddress):
            yield from _about_address(address)
    where = many_workers(os.environ, sys.argv)
    if where and gate.limiter.engine.per_process:
        yield Finding(
            "SG103",
            f"limits are per process: with {where} a client gets up to that many times each; "
            'LmdbStore counts for all of them: Limiter.from_url("lmdb:///var/lib/app/slidegate")',
        )
    yield from _about_order(gate)
    yield from _about_places(gate)
    yield from _about_roots(gate)
    yield from _about_layers(gate)
    yield from _about_bans(gate, policies)
    trusted = {} if client.permissive else {"trusted": client.networks}
    for what, given in {**lists, **trusted}.items():
        for found in () if given is None else given.wide_ranges():
            yield Finding(
                "SG114",
                f"{what} holds everybody from {found}; no registry hands out networks as wide: is it a slip, such as "
                "/3 for /32?",
            )


def _about_address(client: ClientAddress) -> Iterator[Finding]:
    if client.permissive:
        yield Finding(
            "SG101",
            "most addresses are trusted proxies, so any client can name itself in a header; list the networks of your "
            "proxies, or say how many stand in front: client_ip(trusted=1)",
        )
    if client.ipv6_prefix > IPV6_PREFIX:
        yield Finding(
            "SG108",
            f"ipv6_prefix={client.ipv6_prefix}: one customer usually has a whole /64 and can use any number of its "
            "addresses; 64 is the default",
        )


def _about_order(gate: Guard) -> Iterator[Finding]:
    for earlier, later in hidden_rules(gate.rules):
        yield Finding(
            "SG104",
            f"{later!r} can never apply: {earlier!r} comes first, covers it and ends the list; put {later!r} first",
        )
    for rule in gate.rules:
        if rule.blocks and rule.always:
            yield Finding("SG119", f"{rule!r} blocks every request; give it a path, methods or a condition (when=...)")
    last = next((rule for rule in gate.rules if rule.final and rule.always), None)
    if gate.default_limits and last is not None:
        yield Finding(
            "SG104",
            f"default_limits can never apply: {last!r} covers all requests and ends the list; give it a path, or leave "
            "out one of them",
        )


def _about_places(gate: Guard) -> Iterator[Finding]:
    for rule in gate.rules:
        few = rule.concurrency is not None and rule.concurrency.amount <= FEW_PLACES
        if not few or rule.key is not everyone or rule.connection is not None:
            continue
        router = next((layer for layer in layers(gate.app) if hasattr(layer, "routes")), None)
        for place in walk(router):
            if place.connection == "websocket" and _is_met(rule, place.template):
                yield Finding(
                    "SG120",
                    f"{rule!r}: an open websocket at {place.template!r} holds a place of everybody's; give the rule "
                    'connection="http", and websockets one of their own',
                )
                break


def _about_roots(gate: Guard) -> Iterator[Finding]:
    root = root_of(gate.app)
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
                    "SG105",
                    f"rule {name!r} stands in two middlewares, one inside the other; it is charged once: give them two "
                    "names if they are two limits",
                )
            limiters = gate.limiter.engine, layer.limiter.engine
            clocks = {id(limiter.clock) for limiter in limiters if limiter.per_process}
            if len(clocks) > 1:
                yield Finding(
                    "SG106", "two gates, one inside the other, tell the time by different clocks; give both one limiter"
                )


def _about_bans(gate: Guard, policies: Collection[BanPolicy]) -> Iterator[Finding]:
    for policy in policies:
        for path in (signal for signal in policy.signals if isinstance(signal, str) and signal.startswith("/")):
            exempt = _exempting(gate.rules, path)
            if exempt is not None:
                yield Finding(
                    "SG112",
                    f"path {path!r} of policy {policy.name!r} never strikes: {exempt!r} exempts it; exempt narrower "
                    "paths, or choose another honeypot",
                )
            elif _bans_at_once(policy, path) and (label := _served(gate.app, path)):
                yield Finding(
                    "SG112",
                    f"path {path!r} of policy {policy.name!r} bans the application's own visitors: {label}; take it "
                    "out, or give it a weight below the amount of after=",
                )
    shaken = [
        policy for policy in policies if policy.key is not None and re.search(_OF_THE_CLIENT, policy.key.identity)
    ]
    if shaken and not any(bans_by_address(policy) for policy in policies):
        yield Finding(
            "SG113",
            f"policy {shaken[0].name!r} bans by {shaken[0].key.identity}, which the client chooses, and none bans by "
            'address; add one that does, such as BanPolicy("100/10m", name="addresses")',
        )


def _bans_at_once(policy: BanPolicy, path: str) -> bool:
    weight = policy.signals[path]
    return weight == "ban" or weight >= policy.after.amount


def bans_by_address(policy: BanPolicy) -> bool:
    return policy.key is None or isinstance(policy.key, ClientAddress)


def _exempting(rules: Sequence[Rule], path: str) -> Rule | None:
    """Return the rule that exempts a path."""
    for rule in rules:
        if rule.final and not rule.conditional and _ends(rule, path):
            return rule if rule.exempt else None
    return None


def _ends(rule: Rule, path: str) -> bool:
    """Return whether a rule ends the list for a request that gets a path."""
    return rule.connection != "websocket" and _is_met(rule, path)


def _is_met(rule: Rule, path: str) -> bool:
    """Return whether a rule is about a request that gets a path, or about a handshake at it."""
    about = "GET" in (rule.methods or {"GET"})
    return about and (not rule.matchers or any(matcher.exempts(path) for matcher in rule.matchers))


def _served(app: object, path: str) -> str:
    """Return the label of the route whose own path this is; empty if there is none.

    A route that takes any path does not count: it answers scanners with a page that is meant for others.
    """
    pattern, _ = compile_pattern(path)
    router = next((layer for layer in layers(app) if hasattr(layer, "routes")), None)
    return next((place.label for place in walk(router) if pattern.match(place.template)), "")


def _is_cors(layer: object) -> bool:
    from starlette.middleware.cors import CORSMiddleware  # importing slidegate takes long enough

    if isinstance(layer, Starlette):
        # An application builds its middleware at its first request; before that only their classes are known.
        classes: list[object] = [wrapping.cls for wrapping in layer.user_middleware]
        return CORSMiddleware in classes
    return isinstance(layer, CORSMiddleware)
