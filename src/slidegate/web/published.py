"""What a middleware publishes of its rules and ban policies, for operators and their tools; see `limiter.published`."""

from __future__ import annotations

from collections.abc import Iterator

from ..limiter.named_limits import named
from ..limiter.published import PublishedRule, rules_of
from .bound_rule import BoundRule
from .client_ip import ClientAddress
from .keys import Key, KeyFunction
from .policy import Policy

BAN: str = "ban"
HONEYPOT: str = "honeypot"


def published_rules(policy: Policy) -> Iterator[PublishedRule]:
    """Yield what is known of the rules of a middleware: in order, then those of routes and endpoints."""
    middleware, rules = policy.names.prefix.removesuffix(":"), policy.rules
    for order, bound in enumerate(rules.own):
        yield from _of_rule(bound, order, middleware)
    own = {id(bound) for bound in rules.own}
    for bound in rules.bound():
        if id(bound) not in own:
            yield from _of_rule(bound, len(own), middleware)
    if policy.messages is not None:
        yield from rules_of(named(policy.messages), key="address", order=len(own), middleware=middleware)
    for ban in policy.signals.ban_policies.values():
        key = kind_of_key(ban.key)
        yield PublishedRule(rule=ban.name, key=key, action=BAN, shadow=ban.shadow, middleware=middleware)
        if any(isinstance(signal, str) and signal.startswith("/") for signal in ban.signals):
            yield PublishedRule(rule=ban.name, key=key, action=HONEYPOT, shadow=ban.shadow, middleware=middleware)


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
