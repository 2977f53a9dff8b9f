"""Asks the conditions of rules about a request: a rule with a `when` applies only where it says so.

Limits apply generously and exemptions strictly: where a condition fails, a limit or a block applies, and an exemption
or the end of the list does not.
"""

from __future__ import annotations

from starlette.types import Scope

from .rule_set import Met, RuleSet, Selection
from .user_functions import Calls, request_of


async def settled(rules: RuleSet, selection: Selection, scope: Scope, calls: Calls) -> Selection:
    """Return the rules that a request meets, with their conditions asked: in their order, each function once."""
    request = request_of(scope)
    answers: dict[int, bool | None] = {}  # by identity: not every function can be hashed
    met: list[Met] = []
    for rule, bound, ends in selection.open:
        if id(rule.when) not in answers:
            answers[id(rule.when)] = await calls.holds(rule, request)
        holds = answers[id(rule.when)]
        if holds is None:
            ends = ends and rule.blocks
        if holds is False or (holds is None and rule.exempt):
            continue
        met.append(Met(rule, bound, ends))
        if ends:
            break
    return rules.settle(scope, met)
