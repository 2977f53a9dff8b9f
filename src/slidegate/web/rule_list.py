"""The list of rules of a middleware: put together from its options, and checked for rules that would share a bucket."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..core.arguments import check_list
from ..core.errors import ConfigurationError, quoted
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
            'give limits="100/minute", which is Rule("*", ...), or rules=[...], not both', "limits"
        )
    listed: list[Rule] = check_list("rules", rules, 'a list such as [Rule("*", "100/minute")]', Rule)
    return listed if key is None else [rule.keyed(key) for rule in listed]


def check_apart(rules: Iterable[Rule]) -> None:
    """Check that no two rules would share a bucket."""
    by_identity: dict[str, Rule] = {}
    for rule in rules:
        if not rule.counts:
            continue
        twin = by_identity.get(rule.identity)
        by_identity[rule.identity] = rule
        if twin is None:
            continue
        advice = 'give one of them a name, for example name="burst", or drop it'
        if rule.name is not None:
            paths = "*" if "*" in twin.paths + rule.paths else list(dict.fromkeys(twin.paths + rule.paths))
            advice = f"write one rule with the paths {quoted(paths)}, or give one of them another name"
        raise ConfigurationError(f"{twin!r} and {rule!r} would share one bucket; {advice}", "rules")
