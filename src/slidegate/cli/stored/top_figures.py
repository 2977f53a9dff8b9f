"""The figures that ``slidegate top`` shows, put together from those that workers publish."""

from __future__ import annotations

from typing import Any, Final

from ...admin.seen_by_all import SECTION, VERSION
from ...limiter.figures.stats import Traffic
from .opened import Opened

MOST_ROWS: Final = 100
_S: Final = 1_000_000


def figures(at: Opened, window: str) -> dict[str, Any]:
    """Return the figures of all workers that publish in a store. All rates are a second.

    Args:
        at: The store.
        window: How far back.

    Raises:
        ConfigurationError: The window cannot be used.
        StoreError: The store does not answer.
    """
    limiter = at.limiter
    stats = at.wait(limiter.stats_all(window))
    sections = at.wait(limiter.engine.all_workers.sections(SECTION))
    span_s = stats.total.seen.span_us / _S
    rules = {name: _rates(traffic, span_s) for name, traffic in stats.rules.items()}
    routes = {name: _rates(traffic, span_s) for name, traffic in stats.routes.items()}
    return {
        "window_s": span_s,
        "workers": [worker.name for worker in stats.workers if not worker.here],
        **_rates(stats.total, span_s),
        "rules": _busiest("rule", rules),
        "routes": _busiest("route", routes),
        "clients": _clients([section.value for section in sections if not section.worker.here]),
    }


def _rates(traffic: Traffic, span_s: float) -> dict[str, float]:
    return {
        "requests": round((traffic.passed + traffic.refused) / span_s, 3),
        "refused": round(traffic.refused / span_s, 3),
        "banned": round(traffic.banned / span_s, 3),
    }


def _busiest(what: str, rates: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    names = sorted(rates, key=lambda name: (-rates[name]["requests"], name))
    return [{what: name, **rates[name]} for name in names[:MOST_ROWS]]


def _clients(sections: list[Any]) -> list[dict[str, Any]]:
    """Return the busiest clients of some workers. The sections come from a store, so nothing in them is certain."""
    clients: dict[str, dict[str, Any]] = {}
    for section in sections:
        if not isinstance(section, dict) or section.get("version") != VERSION:
            continue
        for one in section.get("busy", ()):
            known = clients.setdefault(str(one["key"]), {"client": str(one["key"]), "requests": 0, "refused": 0})
            known["requests"] += int(one["requests"])
            known["refused"] += int(one["refused"])
    return sorted(clients.values(), key=lambda one: (-one["requests"], one["client"]))[:MOST_ROWS]
