"""The list of rules of a middleware: put together from its options, and checked for rules that would share a bucket."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..core.arguments import check_list
from ..core.errors import ConfigurationError, quoted
from .buckets import amounts_by_window
from .keys import Key, KeyFunction
from .rules import Limits, LimitsFunction, Rule


def all_rules(
    limits: Limits | LimitsFunction | None, rules: Sequence[Rule] | None, key: Key | KeyFunction | None = None
) -> Sequence[Rule]:
    """Return the rules of a middleware: those given, one made from `limits`, or none.

    Args:
        limits: The limits of all requests.
        rules: The rules.
        key: The key of rules that have none.
    """
    if rules is None:
        return [] if limits is None else [Rule("*", limits, key=key)]
    if limits is not None:
        raise ConfigurationError(
            'RateLimitMiddleware: give limits="100/minute", which is Rule("*", ...), or rules=[...], not both'
        )
    listed: list[Rule] = check_list("rules", rules, 'a list such as [Rule("*", "100/minute")]', Rule)
    return listed if key is None else [rule.keyed(key) for rule in listed]


def check_apart(rules: Iterable[Rule]) -> None:
    """Check that no two rules would share a bucket."""
    by_identity: dict[str, Rule] = {}
    for rule in rules:
        twin = by_identity.get(rule.identity)
        by_identity[rule.identity] = rule
        if twin is None or not rule.counts:
            continue
        advice = "name one of them, or drop it"
        if rule.name is not None:
            paths = "*" if "*" in twin.paths + rule.paths else list(dict.fromkeys(twin.paths + rule.paths))
            advice = f"write one rule with the paths {quoted(paths)}, or give one of them another name"
        raise ConfigurationError(f"{twin!r} and {rule!r} would share one bucket; {advice}", "rules")


def check_names(rules: Iterable[tuple[Rule, str]]) -> None:
    """Check that rules of one name have the same limits, if these are known before a request.

    Args:
        rules: The rules and the limits at endpoints of one limiter, each with a phrase for its location.

    Raises:
        ConfigurationError: Two rules of one name have different limits.
    """
    named: dict[str, tuple[Rule, str]] = {}
    for rule, where in rules:
        if rule.name is None or not rule.counts or rule.limits_function is not None:
            continue
        twin, there = named.setdefault(rule.identity, (rule, where))
        if amounts_by_window(rule.all_limits) != amounts_by_window(twin.all_limits):
            theirs, own = ("; ".join(map(str, one.all_limits)) for one in (twin, rule))
            raise ConfigurationError(
                f"{rule.name!r} has the limits {quoted(theirs)} {there} and {quoted(own)} {where}, but one name "
                f"has one bucket; write the same limits, or another name such as name={quoted(f'{rule.name}-2')}",
                "name",
            )
