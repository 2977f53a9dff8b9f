"""Figures of all workers as the API shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ..core.limits import parse_duration_us
from ..limiter import Limiter
from ..limiter.stats import AllStats, Traffic, Worker
from ..stores.system_clock import system_us
from .gates_shown import buckets_of
from .onlooker import SHADOW_WINDOW_S
from .parameters import Unusable
from .seen_by_all import Seen

_S: Final = 1_000_000
_MS: Final = 1_000
MOST_SHADOWED: Final = 20


async def stats_shown(limiter: Limiter, window: str) -> dict[str, Any]:
    """Return the figures of all workers over a window.

    Raises:
        StoreError: The store does not answer.
    """
    stats = await limiter.stats_all(window)
    return {
        "window_s": parse_duration_us(window, "window") / _S,
        "workers": workers_shown(stats.workers, system_us()),
        "total": _traffic(stats.total),
        "rules": {name: _traffic(one) for name, one in stats.rules.items()},
        "routes": {name: _traffic(one) for name, one in stats.routes.items()},
    }


def workers_shown(workers: Sequence[Worker], now_us: int) -> list[dict[str, Any]]:
    """Return who they are, and how fresh their figures are."""
    return [
        {
            "name": worker.name,
            "host": worker.host,
            "pid": worker.pid,
            "age_s": worker.age_s,
            "published_at": now_us / _S - worker.age_s,
        }
        for worker in workers
    ]


async def history_shown(limiter: Limiter, window: str, rule: str | None, route: str | None) -> dict[str, Any]:
    """Return figures step by step, for a chart: of everything, of a rule, or of a route.

    Raises:
        Unusable: A rule and a route are given.
        StoreError: The store does not answer.
    """
    if rule is not None and route is not None:
        raise Unusable([("route", "give a rule or a route, not both")])
    chart = await limiter.chart_all(window, rule=rule, route=route)
    points = chart.points
    return {
        "window_s": parse_duration_us(window, "window") / _S,
        "step_s": chart.step_us / _S,
        "start_at": chart.start_us / _S,
        "passed": [point.passed for point in points],
        "refused": [point.refused for point in points],
        "banned": [point.banned for point in points],
        "shadow_refused": [point.shadow_refused for point in points],
        "p50_ms": [_ms(point.p50_us) for point in points],
        "p95_ms": [_ms(point.p95_us) for point in points],
    }


async def shadow_shown(limiter: Limiter, seen: Seen, window: str) -> dict[str, Any]:
    """Return how many requests shadow rules would have refused, beside the number of those that passed.

    Raises:
        StoreError: The store does not answer.
    """
    stats = await limiter.stats_all(window)
    shadows = [rule for rule, _ in buckets_of(limiter) if rule.action == "shadow"]
    limits = {rule.label: [str(limit) for limit in rule.all_limits] for rule in shadows}
    names = [*limits, *(rule for rule, _ in seen.shadowed if rule not in limits)]
    return {
        "window_s": parse_duration_us(window, "window") / _S,
        "clients_window_s": SHADOW_WINDOW_S,
        "rules": [_shadow(name, limits.get(name, []), stats, seen) for name in dict.fromkeys(names)],
    }


def _shadow(name: str, limits: Sequence[str], stats: AllStats, seen: Seen) -> dict[str, Any]:
    would_refuse = stats.rules[name].shadow_refused if name in stats.rules else 0
    passed = stats.total.passed
    clients = [(key, count) for (rule, key), count in seen.shadowed.items() if rule == name]
    clients.sort(key=lambda entry: (-entry[1], entry[0]))
    return {
        "name": name,
        "limits": list(limits),
        "passed": passed,
        "would_refuse": would_refuse,
        "share": min(would_refuse / passed, 1.0) if passed else 0.0,
        "clients": [{"key": key, "count": count} for key, count in clients[:MOST_SHADOWED]],
    }


def _traffic(one: Traffic) -> dict[str, Any]:
    times = one.seen.rt
    return {
        "passed": one.passed,
        "refused": one.refused,
        "shadow_refused": one.shadow_refused,
        "banned": one.banned,
        "blocked": one.blocked,
        "exceptions": one.exceptions,
        "qps": one.qps,
        "p50_ms": _ms(times.quantile(0.5)),
        "p95_ms": _ms(times.quantile(0.95)),
        "p99_ms": _ms(times.quantile(0.99)),
    }


def _ms(span_us: float | None) -> float | None:
    return None if span_us is None else span_us / _MS
