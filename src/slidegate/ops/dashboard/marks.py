"""What has happened, as marks on the curves: bans, changes of limits, outages of the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

OF_EVENTS: Final = {
    "banned": "ban",
    "limit_overridden": "change",
    "limit_restored": "change",
    "switched_off": "change",
    "switched_on": "change",
    "config_reloaded": "change",
    "store_failed": "outage",
    "store_recovered": "outage",
}
"""The kind of mark of each kind of event; those of other kinds have none."""
OF_ACTIONS: Final = {"ban": "ban", "override": "change", "restore": "change"}
_DONE: Final = {"ban": "banned", "override": "changed", "restore": "restored"}
_TEXTS: Final = {"store_failed": "the store fails", "store_recovered": "the store answers"}
_PER_STEP: Final = 3
"""How many marks of one step are told; of further ones, how many there are."""


class Mark(NamedTuple):
    """Something that happened.

    Attributes:
        at: When, in Unix time.
        kind: ``ban``, ``change`` or ``outage``.
        text: What, in a few words.
    """

    at: float
    kind: str
    text: str


def marks_of(events: Iterable[Mapping[str, Any]], actions: Iterable[Mapping[str, Any]]) -> list[Mark]:
    """Return the marks of events of workers and of what operators did, each once."""
    found: dict[tuple[str, str, int], Mark] = {}
    for action in actions:
        kind = OF_ACTIONS.get(action["kind"])
        if kind is not None:
            mark = Mark(action["at"], kind, f"{action['target']} {_DONE[action['kind']]} by {action['by']}")
            found[kind, action["target"], round(mark.at)] = mark
    for event in events:
        kind = OF_EVENTS.get(event["kind"])
        if kind is None:
            continue
        details = event["details"]
        target = details["key"] or details.get("limit", "")
        text = _TEXTS.get(event["kind"]) or f"{target or 'all workers'} {event['kind'].split('_')[-1]}"
        if details["by"]:
            text += f" by {details['by']}"
        mark = Mark(event["at"], kind, text)
        # Several workers report one change, and the history has it as well, some moments earlier.
        if not any((kind, target, round(mark.at) - late) in found for late in (0, 1, 2)):
            found[kind, target, round(mark.at)] = mark
    return sorted(found.values())


def marks_by_step(marks: Iterable[Mark], start_at: float, step_s: float, steps: int) -> dict[int, list[Mark]]:
    """Return the marks of each step, by its index."""
    found: dict[int, list[Mark]] = {}
    for mark in marks:
        place = int((mark.at - start_at) // step_s)
        if 0 <= place < steps:
            found.setdefault(place, []).append(mark)
    return found


def told(marks: Iterable[Mark]) -> str:
    """Return the marks of one step in words."""
    texts = list(dict.fromkeys(mark.text for mark in marks))
    if len(texts) > _PER_STEP:
        return f"{'; '.join(texts[:_PER_STEP])}; {len(texts) - _PER_STEP} more"
    return "; ".join(texts)
