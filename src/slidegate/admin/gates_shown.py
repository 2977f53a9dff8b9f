"""The gates of a limiter as the API shows them: rules, policies, lists, findings."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, NamedTuple

from ..core import decision
from ..core.bans.in_force import shown
from ..core.bans.policy import BanPolicy
from ..core.concurrency import Concurrency
from ..core.decision import Bucket
from ..core.limits import AnyLimit, Limit
from ..core.networks import Networks
from ..limiter import Limiter
from ..web.keys import Key
from ..web.middleware import RateLimitMiddleware
from ..web.network_files import AddressList, NetworkFile
from ..web.reload import ReloadingMiddleware
from ..web.rule_set import BoundRule
from ..web.rules import Rule
from .onlooker import Logged

_S: Final = 1_000_000
_MOST_RULES: Final = 2_000
"""How many rules of a gate are shown; limits for each route may be more."""
_ABOUT_LISTS: Final = {"list_reloaded": "loaded", "list_rejected": "rejected"}


class Shown(NamedTuple):
    """A gate with the name that the API has for it."""

    name: str
    gate: RateLimitMiddleware


def release() -> str:
    """Return the version of the package."""
    try:
        return version("slidegate")
    except PackageNotFoundError:
        return "unknown"


def gates_of(limiter: Limiter) -> list[Shown]:
    """Return the gates on a limiter, those that follow a file as they are at work now."""
    found: list[Shown] = []
    for caller in limiter.engine.callers.listed():
        name = f"gate {len(found) + 1}"
        if isinstance(caller, ReloadingMiddleware):
            found.append(Shown(f"{name} ({caller.path.name})", caller.app))
        elif isinstance(caller, RateLimitMiddleware):
            found.append(Shown(name, caller))
    return found


def rules_shown(limiter: Limiter) -> dict[str, Any]:
    """Return the rules in force, by gate."""
    return {"gates": [_gate(name, gate, limiter) for name, gate in gates_of(limiter)]}


def buckets_of(limiter: Limiter) -> Iterator[tuple[Rule, Bucket]]:
    """Yield the buckets of all gates, one that several share as often as they do."""
    for _, gate in gates_of(limiter):
        for bound in gate.bound():
            for bucket in (bound.bucket, bound.places):
                if bucket is not None:
                    yield bound.rule, bucket


def lists_shown(limiter: Limiter, events: Iterable[Logged] = ()) -> list[dict[str, Any]]:
    """Return the block and allow lists of all gates.

    Args:
        limiter: The limiter.
        events: The events of this process, newest first: they tell of files that could not be taken.
    """
    told: dict[str, Logged] = {}
    for event in events:
        if event["kind"] in _ABOUT_LISTS:
            told.setdefault(event["details"].get("list", ""), event)
    found: list[dict[str, Any]] = []
    for name, gate in gates_of(limiter):
        for kind, listed in gate.lists.items():
            if listed is not None:
                found += _lists(kind, name, listed, told)
    return found


def config_shown(limiter: Limiter) -> dict[str, Any]:
    """Return the settings, without anything that is secret."""
    failover = limiter.engine.failover
    gates = gates_of(limiter)
    return {
        "version": release(),
        "python": platform.python_version(),
        "compiled": not (decision.__file__ or "").endswith(".py"),
        "store": shown(repr(limiter.store)),
        "per_process": limiter.engine.per_process,
        "deadline_s": None if failover is None else failover.deadline_us / _S,
        "on_error": None if failover is None else failover.on_error,
        "gates": [{"name": name, "rules": len(gate.rules)} for name, gate in gates],
        "findings": [
            {"code": finding.code, "message": finding.message, "gate": name}
            for name, gate in gates
            for finding in list(gate.findings)
        ],
    }


def limit_shown(limit: AnyLimit) -> dict[str, Any]:
    """Return a limit as the API shows it."""
    window = limit if isinstance(limit, Limit) else None
    return {
        "text": str(limit),
        "amount": limit.amount,
        "window_s": None if window is None else window.window_us / _S,
        "resolution": None if window is None else window.resolution,
        "kind": kind_of(limit),
    }


def kind_of(limit: AnyLimit) -> str:
    """Return ``"window"``, ``"quota"`` or ``"concurrency"``."""
    if isinstance(limit, Concurrency):
        return "concurrency"
    return "window" if isinstance(limit, Limit) else "quota"


def _gate(name: str, gate: RateLimitMiddleware, limiter: Limiter) -> dict[str, Any]:
    bound = gate.bound()
    of_rules = {id(one.rule) for one in bound} & {id(rule) for rule in gate.rules}
    identities = {id(one.rule): one.bucket.rule for one in bound}
    return {
        "name": name,
        "rules": [_rule(rule, identities.get(id(rule), rule.identity)) for rule in gate.rules[:_MOST_RULES]],
        "endpoints": [_bound(one) for one in bound if id(one.rule) not in of_rules][:_MOST_RULES],
        "default_limits": [str(limit) for limit in gate.default_limits],
        "policies": [_policy(policy) for policy in gate.policies],
        "lists": [one for kind, listed in gate.lists.items() if listed for one in _lists(kind, name, listed, {})],
    }


def _bound(one: BoundRule) -> dict[str, Any]:
    return _rule(one.rule, one.bucket.rule)


def _rule(rule: Rule, identity: str) -> dict[str, Any]:
    return {
        "name": rule.label,
        "identity": identity,
        "paths": list(rule.paths),
        "methods": None if rule.methods is None else sorted(rule.methods),
        "connection": rule.connection,
        "limits": [limit_shown(limit) for limit in rule.all_limits],
        "by_request": rule.limits_function is not None,
        "key": _key(rule.key),
        "cost": rule.cost if isinstance(rule.cost, int) else None,
        "action": rule.action,
        "exempt": rule.exempt,
        "final": rule.final,
        "status": rule.status if rule.blocks else None,
        "conditional": rule.conditional,
        "count_denied": rule.count_denied,
        "wait_s": rule.wait_us / _S,
    }


def _key(key: object) -> str:
    if key is None:
        return "client"
    if isinstance(key, Key):
        return shown(key.identity)
    return shown(getattr(key, "__qualname__", type(key).__qualname__))


def _policy(policy: BanPolicy) -> dict[str, Any]:
    return {
        "name": policy.name,
        "after": str(policy.after),
        "duration_s": policy.duration_us / _S,
        "factor": float(policy.factor),
        "longest_s": policy.longest_us / _S,
        "action": policy.action,
        "answer": policy.answer,
        "signals": {str(signal): str(weight) for signal, weight in policy.signals.items()},
        "key": _key(policy.key),
    }


def _lists(kind: str, gate: str, listed: AddressList, told: dict[str, Logged]) -> list[dict[str, Any]]:
    if isinstance(listed, Networks):
        fixed = {"name": kind, "path": None, "entries": len(listed), "changed_at": None, "status": "fixed"}
        return [{"kind": kind, "gate": gate, **fixed, "message": ""}]
    return [_file(kind, gate, *state, told) for state in listed.states]


def _file(
    kind: str, gate: str, file: NetworkFile, entries: int, written_ns: int | None, told: dict[str, Logged]
) -> dict[str, Any]:
    event = told.get(file.name)
    return {
        "kind": kind,
        "gate": gate,
        "name": file.name,
        "path": str(file.path),
        "entries": entries,
        "changed_at": None if written_ns is None else written_ns / 1_000_000_000,
        "status": "loaded" if event is None else _ABOUT_LISTS[event["kind"]],
        "message": "" if event is None else event["message"],
    }
