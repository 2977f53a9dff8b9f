"""What a middleware publishes of its rules and ban policies, for operators and their tools; see `limiter.published`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Final
from weakref import WeakKeyDictionary

from ..core.bans.policy import BanPolicy
from ..core.buckets import Bucket
from ..core.concurrency import Concurrency
from ..core.durations import format_duration
from ..core.limits import AnyLimit, Limit
from ..limiter.named_limits import text_of_limit
from ..limiter.published import PublishedRule, rules_of
from ..networks.lists import file_of
from .bound_rule import BoundRule
from .client_ip import ClientAddress
from .default_limits import NO_ROUTE, DefaultLimits
from .endpoint_limits import limits_at_endpoints
from .keys import Key, KeyFunction
from .policy import Policy
from .rule_values import Matching

BAN: Final = "ban"
CLIENT: Final = "client"
"""The label and the action of the row that says how a middleware determines clients."""
HONEYPOT: Final = "honeypot"
MESSAGES: Final = "messages"
"""The label of the limits of messages on websockets."""
MOST_RANGES: Final = 1_000
"""How many ranges a list has at most whose ranges are published: a worker makes the text every ten seconds."""
_RANGES: Final = 20
"""How many ranges are in one row."""
_MOST_LEVELS: Final = 8
_ALL_PATHS: Final = re.compile(r"/\{\w+:path\}")
_shown: Final[WeakKeyDictionary[Policy, list[BoundRule]]] = WeakKeyDictionary()
"""The limits at endpoints that the routes of an application show. Requests are not counted with these objects."""


def published_rules(policy: Policy, app: object) -> Iterator[PublishedRule]:
    """Yield what is known of the rules of a middleware: in order, then those of routes and endpoints.

    The limits of routes and at endpoints are found by walking the routes, so that equal workers publish one text from
    the start. Those that no route shows are known when they were met first.

    Args:
        policy: The policy of the middleware.
        app: The application whose routes it guards; None if that is not known yet.
    """
    rules = policy.rules
    yield PublishedRule(rule=CLIENT, action=CLIENT, middleware=policy.names.middleware, **_key_of(None, policy))
    for kind in ("allowlist", "blocklist"):
        yield from _of_list(policy, kind)
    for order, bound in enumerate(rules.own):
        yield from _of_rule(bound, policy, {"order": order, "requests": requests_of(bound.rule.matching)})
    last = len(rules.own)
    if rules.defaults is not None and app is not None:
        yield from _of_routes(rules.defaults, app, policy, last)
    own = {id(bound) for bound in rules.own}
    # Some that routes show were met as well: equal rules are one in what the worker publishes.
    for bound in [*_shown_at_endpoints(policy, app), *rules.bound()]:
        if id(bound) in own:
            continue
        if rules.defaults is not None and rules.defaults.has(bound):  # those of routes are above
            continue
        yield from _of_rule(bound, policy, {"order": last, **_at_endpoint(bound)})
    if policy.messages is not None:
        yield from _of_messages(policy.messages, policy, last)
    for ban in policy.signals.ban_policies.values():
        yield from _of_ban_policy(ban, policy)


def _of_rule(bound: BoundRule, policy: Policy, place: Mapping[str, Any]) -> Iterator[PublishedRule]:
    """Yield the limits of a rule; or one row for a rule that counts nothing.

    Args:
        bound: The rule.
        policy: The policy of its middleware.
        place: The fields that say where it stands, and which requests it concerns.
    """
    rule = bound.rule
    about: dict[str, Any] = {
        "middleware": policy.names.middleware,
        "conditional": rule.matching.when is not None,
        "final": rule.action.is_final,
        **place,
    }
    if not rule.counts:
        yield PublishedRule(rule=rule.label, action=rule.action.kind, **about)
        return
    charging = rule.charging
    limits = bound.named
    rows = rules_of(limits, bucket=bound.identity, **about, **_key_of(charging.key, policy))
    for limit, published in zip(limits, rows, strict=True):
        costs: dict[str, Any] = {}
        if not published.limit.isdigit():  # a request takes one permit, whatever it costs
            costs = {"cost": charging.cost, "cost_by_function": charging.cost_function is not None}
        is_leased = _may_be_leased(limit.configured, policy) and not charging.count_denied
        yield replace(published, wait_us=charging.wait_us, leased=is_leased, **costs)


def _of_routes(defaults: DefaultLimits, app: object, policy: Policy, order: int) -> Iterator[PublishedRule]:
    """Yield the limits of each route, met or not."""
    about: dict[str, Any] = {"order": order, "middleware": policy.names.middleware}
    about |= _key_of(defaults.rule.charging.key, policy)
    for label in defaults.labels_of(app):
        requests = label
        if label == NO_ROUTE:
            requests = "paths without a route"
        about |= {"requests": requests, "bucket": defaults.bucket_of(label)}
        for limit in defaults.limits_of(label):
            yield from rules_of([limit], leased=_may_be_leased(limit.configured, policy), **about)


def _may_be_leased(limit: AnyLimit, policy: Policy) -> bool:
    """Return whether workers may have units of a limit charged ahead; those of permits and exact limits never are."""
    if not policy.limiter.store.leases_units or isinstance(limit, Concurrency):
        return False
    return not (isinstance(limit, Limit) and limit.exact)


def _shown_at_endpoints(policy: Policy, app: object) -> list[BoundRule]:
    """Return the limits that the routes of an application show at its endpoints, met or not."""
    if app is None:
        return []
    found = _shown.get(policy)
    if found is None:
        found = [BoundRule(rule, identity, policy.limiter) for rule, identity in limits_at_endpoints(app)]
        _shown[policy] = found
    return found


def _at_endpoint(bound: BoundRule) -> dict[str, Any]:
    """Return which requests a limit at an endpoint concerns."""
    requests = bound.rule.label
    if bound.rule.name is not None:
        requests = f"endpoints with the limit {bound.rule.name}"
    return {"requests": requests, "at_endpoint": True}


def _of_messages(bucket: Bucket, policy: Policy, order: int) -> Iterator[PublishedRule]:
    """Yield the limits of messages on websockets, without names, as operators cannot change them."""
    about: dict[str, Any] = {
        "middleware": policy.names.middleware,
        "rule": MESSAGES,
        "requests": "messages on websockets",
        "bucket": bucket.name,
        "order": order,
        "at_endpoint": True,
        **_key_of(None, policy),
    }
    for limit in bucket.limits:
        yield PublishedRule(limit=text_of_limit(limit), **about)


def _of_ban_policy(ban: BanPolicy, policy: Policy) -> Iterator[PublishedRule]:
    """Yield a policy, and whether it has honeypots."""
    about: dict[str, Any] = {"rule": ban.name, "shadow": ban.shadow, "middleware": policy.names.middleware}
    about |= _key_of(ban.key, policy)
    yield PublishedRule(action=BAN, durations=_ladder_of(ban), **about)
    if any(isinstance(signal, str) and signal.startswith("/") for signal in ban.signals):
        yield PublishedRule(action=HONEYPOT, **about)


def _ladder_of(ban: BanPolicy) -> str:
    """Return how long the first and further bans last, up to the longest."""
    lengths_us: list[int] = []
    for level in range(1, _MOST_LEVELS + 1):
        length_us = ban.length_us(level)
        if lengths_us and length_us == lengths_us[-1]:
            break
        lengths_us.append(length_us)
    return " ".join(map(format_duration, lengths_us))


def _of_list(policy: Policy, kind: str) -> Iterator[PublishedRule]:
    """Yield the ranges of a list, some in each row; of a long list only how many there are."""
    networks = policy.lists[kind]
    if networks is None:
        return
    ranges = networks.ranges()
    if kind == "blocklist" and policy.blocklist is not None:
        ranges = policy.blocklist.ranges()
    label = kind
    file = file_of(networks)
    if file is not None:
        label = file.name
    about: dict[str, Any] = {
        "middleware": policy.names.middleware,
        "rule": label,
        "action": kind,
        "size": len(networks),
    }
    if len(networks) > MOST_RANGES:
        yield PublishedRule(**about)
        return
    order = 0
    while some := [*islice(ranges, _RANGES)]:
        texts = [f"{version}:{first:x}-{last:x}" for version, first, last in some]
        yield PublishedRule(ranges=" ".join(texts), order=order, **about)
        order += 1


# -- texts -------------------------------------------------------------------------------------------------------------


def requests_of(matching: Matching) -> str:
    """Return which requests a rule concerns: methods and paths; empty for all."""
    words = []
    if matching.methods is not None:
        names = {*matching.methods}
        if "GET" in names:  # which includes HEAD
            names.discard("HEAD")
        words.append(",".join(sorted(names)))
    if matching.connection is not None:
        words.append(matching.connection)
    if not any(_ALL_PATHS.fullmatch(path.path) for path in matching.rule_paths):
        words += [path.path for path in matching.rule_paths]
    return " ".join(words)


def _key_of(key: Key | KeyFunction | None, policy: Policy) -> dict[str, Any]:
    """Return the kind of the keys that a rule or a ban policy reads, and which networks are one client."""
    prefixes = policy.address.prefixes
    if isinstance(key, ClientAddress):
        prefixes = {**key.prefixes}
        # Without proxies of its own it truncates the middleware's client, which may be a network already.
        if not key.trusted:
            for version, prefix in policy.address.prefixes.items():
                prefixes[version] = min(prefix, prefixes[version])
    return {"key": kind_of_key(key), "ipv4_prefix": prefixes[4], "ipv6_prefix": prefixes[6]}


def kind_of_key(key: Key | KeyFunction | None) -> str:
    """Return the kind of the keys that a rule or a ban policy reads."""
    if key is None or isinstance(key, ClientAddress):
        return "address"
    if isinstance(key, Key):
        return key.identity
    return "function"
