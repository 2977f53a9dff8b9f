"""What the admin API shows, as models: a ban, a client, a rule, the figures of some requests.

Each function takes what the library has and returns an answer of `schemas`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Final, NamedTuple

from ..core.bans.in_force import Ban, BanChange, shown
from ..core.bans.policy import BanPolicy
from ..core.concurrency import Concurrency
from ..core.decision import Bucket, Decision
from ..core.limits import AnyLimit, Limit
from ..core.networks import Networks
from ..limiter import Limiter
from ..limiter.inspect import KeyStanding, KeyView
from ..limiter.stats import Chart, Traffic, Worker
from ..web.keys import Key
from ..web.middleware import RateLimitMiddleware
from ..web.network_files import AddressList
from ..web.reload import ReloadingMiddleware
from ..web.rules import Rule
from . import schemas
from .activity import LoggedEvent

_S: Final = 1_000_000
_MS: Final = 1_000
_MAX_RULES: Final = 2_000
"""How many rules of a middleware are shown; limits for each route may be more."""


class NamedGate(NamedTuple):
    """A middleware, with the name that the API has for it."""

    name: str
    gate: RateLimitMiddleware


def release() -> str:
    """Return the version of the package."""
    try:
        return version("slidegate")
    except PackageNotFoundError:
        return "unknown"


# -- figures -----------------------------------------------------------------------------------------------------------


def traffic_view(traffic: Traffic) -> schemas.Traffic:
    """Return the figures of some requests."""
    times = traffic.seen.rt
    return schemas.Traffic(
        passed=traffic.passed,
        refused=traffic.refused,
        shadow_refused=traffic.shadow_refused,
        banned=traffic.banned,
        blocked=traffic.blocked,
        exceptions=traffic.exceptions,
        qps=traffic.qps,
        p50_ms=_ms(times.quantile(0.5)),
        p95_ms=_ms(times.quantile(0.95)),
        p99_ms=_ms(times.quantile(0.99)),
    )


def history_view(chart: Chart, window_s: float) -> schemas.History:
    """Return figures step by step."""
    points = chart.points
    return schemas.History(
        window_s=window_s,
        step_s=chart.step_us / _S,
        start_at=chart.start_us / _S,
        passed=[point.passed for point in points],
        refused=[point.refused for point in points],
        banned=[point.banned for point in points],
        shadow_refused=[point.shadow_refused for point in points],
        p50_ms=[_ms(point.p50_us) for point in points],
        p95_ms=[_ms(point.p95_us) for point in points],
    )


def worker_view(worker: Worker, now_s: float) -> schemas.Worker:
    """Return who a worker is, and how fresh its figures are."""
    return schemas.Worker(
        name=worker.name,
        host=worker.host,
        pid=worker.pid,
        age_s=worker.age_s,
        published_at=now_s - worker.age_s,
    )


# -- bans and clients --------------------------------------------------------------------------------------------------


def ban_view(ban: Ban) -> schemas.Ban:
    """Return a ban."""
    return schemas.Ban(
        target=ban.key,
        reason=ban.reason,
        policy=ban.by,
        since_at=ban.wall_us / _S,
        until_at=None if ban.ends_us is None else (ban.wall_us + ban.ends_us - ban.made_us) / _S,
        rung=ban.rung,
    )


def change_view(change: BanChange) -> schemas.BanChange:
    """Return a ban or an unban of the past."""
    return schemas.BanChange(kind=change.kind, at=change.wall_us / _S, by=change.by, reason=change.ban.reason)


def standing_views(standing: KeyStanding) -> list[schemas.Standing]:
    """Return how a key stands under each policy."""
    ahead_us = standing.unix_us - standing.now_us
    return [
        schemas.Standing(
            policy=one.policy,
            target=one.key,
            strikes=one.strikes,
            needed=one.needed,
            rung=one.rung,
            clean_since_at=(one.clean_since_us + ahead_us) / _S,
            clean_until_at=None if one.clean_until_us is None else (one.clean_until_us + ahead_us) / _S,
        )
        for one in standing.policies
    ]


def window_views(view: KeyView, recent: Iterable[str] | None = None) -> list[schemas.Window]:
    """Return the windows of a key.

    Args:
        view: The windows.
        recent: The identities of rules whose empty windows are shown too; None for all.
    """
    ahead_us = view.unix_us - view.now_us
    return [
        schemas.Window(
            rule=window.label,
            limit=str(window.limit),
            kind=kind_of(window.limit),
            amount=window.limit.amount,
            used=window.used,
            remaining=window.remaining,
            retry_after_s=_s(window.retry_after_us),
            more_after_s=_s(window.more_after_us),
            reset_after_s=_s(window.reset_after_us),
            slices=[
                schemas.Slice(
                    start_at=(part.start_us + ahead_us) / _S, end_at=(part.end_us + ahead_us) / _S, count=part.units
                )
                for part in window.slices
            ],
        )
        for window in view.windows
        if window.used or recent is None or window.rule in recent
    ]


def decided_views(decision: Decision, asked: int = 0) -> list[schemas.WindowNow]:
    """Return each limit's part in a decision.

    Args:
        decision: The decision.
        asked: The units that it was only asked about, and that are not charged.
    """
    unspent = asked if decision.allowed else 0
    labels = {bucket.rule: bucket.label for bucket, _, _ in decision.checks}
    return [
        schemas.WindowNow(
            rule=labels[state.rule],
            limit=str(state.limit),
            kind=kind_of(state.limit),
            amount=state.limit.amount,
            used=reading[0] - unspent,
            remaining=max(state.limit.amount - reading[0] + unspent, 0),
            retry_after_s=_s(state.retry_after_us),
            more_after_s=_s(state.more_after_us),
            reset_after_s=_s(state.reset_after_us),
        )
        for state, reading in zip(decision.states, decision.readings, strict=True)
    ]


# -- rules -------------------------------------------------------------------------------------------------------------


def gates_of(limiter: Limiter) -> list[NamedGate]:
    """Return the middlewares on a limiter; of those that follow a file, the one at work now."""
    found: list[NamedGate] = []
    for caller in limiter.engine.callers.listed():
        name = f"gate {len(found) + 1}"
        if isinstance(caller, ReloadingMiddleware):
            found.append(NamedGate(f"{name} ({caller.path.name})", caller.app))
        elif isinstance(caller, RateLimitMiddleware):
            found.append(NamedGate(name, caller))
    return found


def buckets_of(limiter: Limiter) -> Iterator[tuple[Rule, Bucket]]:
    """Yield the buckets of all middlewares, one that several share as often as they do."""
    for _, gate in gates_of(limiter):
        for bound in gate.bound():
            for bucket in (bound.bucket, bound.places):
                if bucket is not None:
                    yield bound.rule, bucket


def gate_view(name: str, gate: RateLimitMiddleware, events: Sequence[LoggedEvent]) -> schemas.Gate:
    """Return everything that a middleware enforces.

    Args:
        name: Its name.
        gate: The middleware.
        events: See `list_views`.
    """
    bound = gate.bound()
    own = {id(one.rule) for one in bound} & {id(rule) for rule in gate.rules}
    identities = {id(one.rule): one.bucket.rule for one in bound}
    return schemas.Gate(
        name=name,
        rules=[rule_view(rule, identities.get(id(rule))) for rule in gate.rules[:_MAX_RULES]],
        endpoints=[rule_view(one.rule, one.bucket.rule) for one in bound if id(one.rule) not in own][:_MAX_RULES],
        default_limits=[str(limit) for limit in gate.default_limits],
        policies=[policy_view(policy) for policy in gate.policies],
        lists=list_views(name, gate, events),
    )


def rule_view(rule: Rule, identity: str | None = None) -> schemas.Rule:
    """Return a rule.

    Args:
        rule: The rule.
        identity: The identity of its bucket, where a middleware gave it another one.
    """
    return schemas.Rule(
        name=rule.label,
        identity=rule.identity if identity is None else identity,
        paths=list(rule.paths),
        methods=None if rule.methods is None else sorted(rule.methods),
        connection=rule.connection,
        limits=[limit_view(limit) for limit in rule.all_limits],
        by_request=rule.limits_function is not None,
        key=_key(rule.key),
        cost=rule.cost if isinstance(rule.cost, int) else None,
        action=rule.action,
        exempt=rule.exempt,
        final=rule.final,
        status=rule.status if rule.blocks else None,
        conditional=rule.conditional,
        count_denied=rule.count_denied,
        wait_s=rule.wait_us / _S,
    )


def limit_view(limit: AnyLimit) -> schemas.Limit:
    """Return a limit."""
    window = limit if isinstance(limit, Limit) else None
    return schemas.Limit(
        text=str(limit),
        amount=limit.amount,
        window_s=None if window is None else window.window_us / _S,
        resolution=None if window is None else window.resolution,
        kind=kind_of(limit),
    )


def kind_of(limit: AnyLimit) -> schemas.LimitKind:
    """Return what kind of limit it is."""
    if isinstance(limit, Concurrency):
        return "concurrency"
    return "window" if isinstance(limit, Limit) else "quota"


def policy_view(policy: BanPolicy) -> schemas.Policy:
    """Return a ban policy."""
    return schemas.Policy(
        name=policy.name,
        after=str(policy.after),
        duration_s=policy.duration_us / _S,
        factor=float(policy.factor),
        longest_s=policy.longest_us / _S,
        action=policy.action,
        answer=policy.answer,
        signals={str(signal): str(weight) for signal, weight in policy.signals.items()},
        key=_key(policy.key),
    )


def list_views(gate_name: str, gate: RateLimitMiddleware, events: Sequence[LoggedEvent]) -> list[schemas.List]:
    """Return the block and allow lists of a middleware.

    Args:
        gate_name: Its name.
        gate: The middleware.
        events: The events of this process, oldest first: they tell of files that could not be taken.
    """
    last = {
        event["details"].get("list"): event for event in events if event["kind"] in ("list_reloaded", "list_rejected")
    }
    found: list[schemas.List] = []
    kinds: tuple[schemas.ListKind, ...] = ("blocklist", "allowlist")
    for kind in kinds:
        listed: AddressList | None = gate.lists[kind]
        if isinstance(listed, Networks):
            found.append(
                schemas.List(
                    kind=kind,
                    gate=gate_name,
                    name=kind,
                    path=None,
                    entries=len(listed),
                    changed_at=None,
                    status="fixed",
                    message="",
                )
            )
        for file, entries, written_ns in () if listed is None or isinstance(listed, Networks) else listed.states:
            event = last.get(file.name)
            found.append(
                schemas.List(
                    kind=kind,
                    gate=gate_name,
                    name=file.name,
                    path=str(file.path),
                    entries=entries,
                    changed_at=None if written_ns is None else written_ns / 1_000_000_000,
                    status="rejected" if event is not None and event["kind"] == "list_rejected" else "loaded",
                    message="" if event is None else event["message"],
                )
            )
    return found


def _key(key: object) -> str:
    if key is None:
        return "client"
    if isinstance(key, Key):
        return shown(key.identity)
    return shown(getattr(key, "__qualname__", type(key).__qualname__))


def _s(span_us: int | None) -> float | None:
    return None if span_us is None else span_us / _S


def _ms(span_us: float | None) -> float | None:
    return None if span_us is None else span_us / _MS
