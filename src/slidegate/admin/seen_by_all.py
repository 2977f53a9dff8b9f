"""Each worker publishes a part of the things that its onlooker keeps, and every console puts the parts together.

A section is published every few seconds and has a bound in bytes, so the newest entries go in until it is full. Of the
worker that is asked, everything is taken that it keeps.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Final, TypeVar

from ..core.errors import StoreError
from ..core.logs import logger
from ..limiter import Limiter
from .onlooker import Busy, Logged, Onlooker, Refusal

SECTION: Final = "console"
VERSION: Final = 1
"""Of the form of a section: workers of another release may share the store for a while."""
MOST_BUSY: Final = 60
MOST_SHADOWED: Final = 60
_EVENT_BYTES: Final = 8_000
_REFUSAL_BYTES: Final = 8_000
_BUSY_BYTES: Final = 8_000
_SHADOW_BYTES: Final = 4_000

T = TypeVar("T")


class Seen:
    """What several workers see, put together.

    Attributes:
        busy: The busiest clients, each once, the most requests first.
        refusals: The last refusals, newest first.
        events: (short name of the worker, name of the worker, event), newest first.
        shadowed: (rule, key) -> how often a shadow would have refused it.
    """

    def __init__(self) -> None:
        self.busy: list[Busy] = []
        self.refusals: list[Refusal] = []
        self.events: list[tuple[str, str, Logged]] = []
        self.shadowed: dict[tuple[str, str], int] = {}


def published(onlooker: Onlooker) -> dict[str, Any]:
    """Return the section of a worker: JSON of less than 32 KiB."""
    return {
        "version": VERSION,
        "busy": _fitting(onlooker.busiest(MOST_BUSY), _BUSY_BYTES),
        "refusals": _fitting(reversed(onlooker.refusals()), _REFUSAL_BYTES),
        "events": _fitting(reversed(onlooker.events()), _EVENT_BYTES),
        "shadowed": _fitting(map(list, onlooker.would_refuse(MOST_SHADOWED)), _SHADOW_BYTES),
    }


async def gather(limiter: Limiter, onlooker: Onlooker) -> Seen:
    """Put together what the workers of a limiter see. Where the store is away, only this one is asked."""
    try:
        sections = await limiter.engine.all_workers.sections(SECTION)
    except StoreError as error:
        logger.warning("admin: what other workers see is not known: %s", error)
        sections = []
    here = next((section.worker.name for section in sections if section.worker.here), "")
    parts: list[tuple[str, dict[str, Any]]] = [(here, _whole(onlooker))]
    parts += [
        (section.worker.name, section.value)
        for section in sections
        if not section.worker.here and isinstance(section.value, dict) and section.value.get("version") == VERSION
    ]
    return _together(parts)


def short_name(worker: str) -> str:
    """Return eight characters for the name of a worker."""
    return blake2b(worker.encode(), digest_size=4).hexdigest()


def _together(parts: list[tuple[str, dict[str, Any]]]) -> Seen:
    seen = Seen()
    busy: dict[str, Busy] = {}
    for worker, part in parts:
        for one in part.get("busy", ()):
            known = busy.setdefault(one["key"], {"key": one["key"], "requests": 0, "refused": 0, "rules": []})
            known["requests"] += one["requests"]
            known["refused"] += one["refused"]
            known["rules"] = list(dict.fromkeys([*known["rules"], *one["rules"]]))
        refusals: list[Refusal] = part.get("refusals", [])
        seen.refusals += [{**refusal, "worker": worker} for refusal in refusals]
        seen.events += [(short_name(worker), worker, event) for event in part.get("events", ())]
        for rule, key, times in part.get("shadowed", ()):
            seen.shadowed[rule, key] = seen.shadowed.get((rule, key), 0) + times
    seen.busy = sorted(busy.values(), key=lambda one: (-one["requests"], one["key"]))
    seen.refusals.sort(key=lambda refusal: -refusal["at"])
    seen.events.sort(key=lambda entry: (-entry[2]["at"], -entry[2]["number"]))
    return seen


def _whole(onlooker: Onlooker) -> dict[str, Any]:
    return {
        "busy": onlooker.busiest(10 * MOST_BUSY),
        "refusals": onlooker.refusals()[::-1],
        "events": onlooker.events(),
        "shadowed": onlooker.would_refuse(10 * MOST_SHADOWED),
    }


def _fitting(entries: Iterable[T], most_bytes: int) -> list[T]:
    """Return the first entries that have room."""
    fitting: list[T] = []
    left = most_bytes
    for entry in entries:
        left -= len(json.dumps(entry)) + 2
        if left < 0:
            break
        fitting.append(entry)
    return fitting
