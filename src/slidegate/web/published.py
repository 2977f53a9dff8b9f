"""What a middleware publishes of its rules and ban policies, for operators and their tools; see `limiter.workers`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ..limiter.workers import PublishedRule, fields_of, rules_of
from .client_ip import ClientAddress
from .endpoint_rule import EndpointRule
from .keys import Key, KeyFunction
from .plan import BoundRule
from .policy import Policy
from .routes import text_of_methods
from .rule_set import OF_ROUTE
from .rules import Rule

BAN: Final = "ban"
CLIENT: Final = "client"
"""The label and the action of the row that says how a middleware determines clients."""
MESSAGES: Final = "messages"
"""The label of the limits of messages on websockets."""
MOST_RANGES: Final = 1_000
"""How many ranges a list has at most whose ranges are published: a worker makes the text every ten seconds."""


def published_rules(policy: Policy) -> Iterator[PublishedRule]:
    """Yield what is known of the rules of a middleware, but not of which: in order, then those of routes and endpoints.

    Limits of routes and at endpoints are known from their first request on.

    Args:
        policy: The policy of the middleware.
    """
    rules = policy.rules
    by_client = _key_of(None, policy)
    yield PublishedRule(rule=CLIENT, action=CLIENT, **by_client)
    yield from _of_list(policy, "allowlist")
    yield from _of_list(policy, "blocklist")
    for order, bound in enumerate(rules.in_order):
        yield from _of_rule(bound, policy, order=order, requests=requests_of(bound.rule))
    last = len(rules.in_order)
    placed = {*rules.in_order}
    for bound in rules.bound():
        if bound not in placed:
            yield from _of_rule(
                bound,
                policy,
                order=last,
                requests=bound.rule.label.removeprefix(OF_ROUTE),
                at_endpoint=isinstance(bound.rule, EndpointRule),
            )
    if policy.messages is not None:  # their limits have no names, as operators cannot change them
        for limit in policy.messages.limits:
            yield PublishedRule(
                order=last,
                rule=MESSAGES,
                bucket=policy.messages.name,
                requests="messages on websockets",
                at_endpoint=True,
                **fields_of(limit),
                **by_client,
            )
    for ban in policy.signals.ban_policies.values():
        yield PublishedRule(rule=ban.name, action=BAN, shadow=ban.shadow, **_key_of(ban.key, policy))


def _of_rule(bound: BoundRule, policy: Policy, **place: Any) -> Iterator[PublishedRule]:
    """Yield the limits of a rule; or one row for a rule that counts nothing.

    Args:
        policy: The policy of its middleware.
        place: The fields that say where it stands, and which requests it concerns.
    """
    rule = bound.rule
    about: dict[str, Any] = {
        "conditional": rule.when is not None,
        "final": rule.is_final,
        **place,
    }
    if not rule.counts:
        yield PublishedRule(rule=rule.label, action=rule.action, **about)
        return
    about |= {"bucket": bound.identity, "wait_us": rule.wait_us, **_key_of(rule.key, policy)}
    for bucket, cost in bound.charges:  # a request takes one permit, whatever it costs
        yield from rules_of(
            bound.named_of(bucket),
            cost=cost,
            cost_by_function=rule.cost_function is not None and not bucket.is_permit,
            leased=policy.limiter.store.leases_units and bucket.may_be_leased,
            **about,
        )


def _of_list(policy: Policy, kind: str) -> Iterator[PublishedRule]:
    """Yield the ranges of a list; of a long one only how many there are."""
    networks = policy.lists[kind]
    if networks is None:
        return
    ranges = networks.ranges()
    if kind == "blocklist" and policy.blocklist is not None:
        ranges = policy.blocklist.ranges()
    label = kind
    if networks.file is not None:
        label = networks.file.name
    text = ""
    if len(networks) <= MOST_RANGES:
        text = " ".join(f"{version}:{first:x}-{last:x}" for version, first, last in ranges)
    yield PublishedRule(rule=label, action=kind, ranges=text, size=len(networks))


# -- texts -------------------------------------------------------------------------------------------------------------


def requests_of(rule: Rule) -> str:
    """Return which requests a rule concerns: methods and paths; empty for all."""
    words = text_of_methods(rule.methods or ()), rule.connection, *[path.path for path in rule.rule_paths]
    return " ".join(filter(None, words))


def _key_of(key: Key | KeyFunction | None, policy: Policy) -> dict[str, Any]:
    """Return the kind of the keys that a rule or a ban policy reads, and which networks are one client."""
    prefixes = policy.address.prefixes
    if isinstance(key, ClientAddress):
        prefixes = key.prefixes
    return {"key": kind_of_key(key), "ipv4_prefix": prefixes[4], "ipv6_prefix": prefixes[6]}


def kind_of_key(key: Key | KeyFunction | None) -> str:
    """Return the kind of the keys that a rule or a ban policy reads."""
    if key is None or isinstance(key, ClientAddress):
        return "address"
    if isinstance(key, Key):
        return key.identity
    return "function"
