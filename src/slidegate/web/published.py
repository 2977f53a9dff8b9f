"""What a middleware publishes of its rules and ban policies, for operators and their tools; see `limiter.published`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ..limiter.named_limits import written
from ..limiter.published import PublishedRule, rules_of
from .bound_rule import BoundRule
from .client_ip import ClientAddress
from .default_limits import DefaultLimits
from .keys import Key, KeyFunction
from .policy import Policy

BAN: Final = "ban"
HONEYPOT: Final = "honeypot"
MESSAGES: Final = "messages"
"""The label of the limits of messages on websockets."""


def published_rules(policy: Policy, app: object) -> Iterator[PublishedRule]:
    """Yield what is known of the rules of a middleware: in order, then those of routes and endpoints.

    The limits of routes are found by walking these, so that equal workers publish one text from the start. Those at
    endpoints are known when they were met first.

    Args:
        policy: The policy of the middleware.
        app: The application whose routes it guards; None if that is not known yet.
    """
    middleware, rules = policy.names.prefix.removesuffix(":"), policy.rules
    for order, bound in enumerate(rules.own):
        yield from _of_rule(bound, order, middleware)
    if rules.defaults is not None and app is not None:
        yield from _of_routes(rules.defaults, app, len(rules.own), middleware)
    own = {id(bound) for bound in rules.own}
    for bound in rules.bound():
        if id(bound) not in own:
            yield from _of_rule(bound, len(own), middleware)
    if policy.messages is not None:
        for limit in policy.messages.limits:  # without a name, as operators cannot change them
            yield PublishedRule("", written(limit), MESSAGES, "address", order=len(own), middleware=middleware)
    for ban in policy.signals.ban_policies.values():
        key = kind_of_key(ban.key)
        yield PublishedRule(rule=ban.name, key=key, action=BAN, shadow=ban.shadow, middleware=middleware)
        if any(isinstance(signal, str) and signal.startswith("/") for signal in ban.signals):
            yield PublishedRule(rule=ban.name, key=key, action=HONEYPOT, shadow=ban.shadow, middleware=middleware)


def _of_routes(defaults: DefaultLimits, app: object, order: int, middleware: str) -> Iterator[PublishedRule]:
    """Yield the limits of each route, met or not."""
    key = kind_of_key(defaults.rule.charging.key)
    for label in defaults.labels_of(app):
        limits = defaults.limits_of(label)
        yield from rules_of(limits, key=key, order=order, middleware=middleware)


def _of_rule(bound: BoundRule, order: int, middleware: str) -> Iterator[PublishedRule]:
    """Yield the limits of a rule; or one row for a rule that counts nothing."""
    rule = bound.rule
    if rule.counts:
        key = kind_of_key(rule.charging.key)
        yield from rules_of(bound.named, key=key, order=order, middleware=middleware)
        return
    action = rule.action.kind.value
    yield PublishedRule(rule=rule.label, action=action, order=order, middleware=middleware)


def kind_of_key(key: Key | KeyFunction | None) -> str:
    """Return the kind of the keys that a rule or a ban policy reads."""
    if key is None or isinstance(key, ClientAddress):
        return "address"
    if isinstance(key, Key):
        return key.identity
    return "function"
