"""What has happened, as marks on the curves: bans, changes of limits and outages of the store, each once.

What an operator does is in the history. Each worker emits an event of it as soon as it reads the store, which a worker
without requests may do a minute later. An action and its events are recognised by what was done, to what, and until
when::

    history     ann changes api until 9:00
    worker 1      event: api is changed until 9:00
    worker 2                                   event: api is changed until 9:00
    mark        |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from math import inf
from operator import itemgetter
from typing import Any, Final, NamedTuple


class _Kind(NamedTuple):
    """What the mark of an action or an event says.

    Attributes:
        mark: ``ban``, ``change`` or ``outage``.
        action: The action of an operator that an event may report, or the kind of the event.
        text: What has happened to the target, which comes before it.
        has_author: Whether the event names who did it; that of a restored limit names who had changed it.
    """

    mark: str
    action: str
    text: str
    has_author: bool = True


_BAN: Final = _Kind("ban", "ban", "banned")
_OVERRIDE: Final = _Kind("change", "override", "changed")
_RESTORE: Final = _Kind("change", "restore", "restored", has_author=False)
_SWITCH_OFF: Final = _Kind("change", "override", "switched off")
_SWITCH_ON: Final = _Kind("change", "restore", "switched on", has_author=False)
_OF_EVENTS: Final = {
    "banned": _BAN,
    "limit_overridden": _OVERRIDE,
    "limit_restored": _RESTORE,
    "switched_off": _SWITCH_OFF,
    "switched_on": _SWITCH_ON,
    "config_reloaded": _Kind("change", "config_reloaded", "a configuration file is reloaded"),
    "store_failed": _Kind("outage", "store_failed", "the store fails"),
    "store_recovered": _Kind("outage", "store_recovered", "the store answers"),
}
"""Events of other kinds have no mark."""
_OF_ACTIONS: Final = {"ban": _BAN, "override": _OVERRIDE, "restore": _RESTORE}
_OF_ALL_WORKERS: Final = {"override": _SWITCH_OFF, "restore": _SWITCH_ON}
"""The actions whose target is ``*``."""
_AT_ONCE_S: Final = 2.0
"""Within this time workers report what they notice by themselves, such as an outage."""
_PER_STEP: Final = 3
"""How many marks of one step are named; of further ones, how many there are."""


class _Happening(NamedTuple):
    """What an action and all events of it have in common.

    Attributes:
        action: What was done, or the kind of an event that nobody has caused.
        target: To what: a key or the name of a limit; ``*`` for all workers.
        until_at: When it ends, in Unix time, or what it has restored would have ended; None for never.
    """

    action: str
    target: str
    until_at: float | None


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
    marks = []
    known: set[_Happening] = set()
    until_at: dict[str, float | None] = {}  # when the latest change of a limit ends, or would have ended
    for action in sorted(actions, key=itemgetter("at")):
        kind = _kind_of_action(action)
        if kind is None:
            continue
        target = action["target"]
        if kind.action != "restore":
            until_at[target] = action["until_at"]
        known.add(_Happening(kind.action, target, until_at.get(target)))
        marks.append(Mark(action["at"], kind.mark, _text(target, kind.text, action["by"])))
    return sorted([*marks, *_marks_of_events(events, known)])


def _marks_of_events(events: Iterable[Mapping[str, Any]], known: set[_Happening]) -> Iterator[Mark]:
    """Yield the marks of what is not known yet."""
    noticed_at: dict[_Happening, float] = {}
    for event in sorted(events, key=itemgetter("at")):
        kind = _OF_EVENTS.get(event["kind"])
        if kind is None:
            continue
        happening = _happening_of(event, kind)
        if happening in known:
            continue
        if happening.until_at is not None:
            known.add(happening)
        else:  # nothing but the time tells two outages apart
            if event["at"] - noticed_at.get(happening, -inf) <= _AT_ONCE_S:
                continue
            noticed_at[happening] = event["at"]
        author = ""
        if kind.has_author:
            author = event["details"]["by"]
        yield Mark(event["at"], kind.mark, _text(happening.target, kind.text, author))


def _kind_of_action(action: Mapping[str, Any]) -> _Kind | None:
    """Return what the mark of an action says; None if it has none, as a lifted ban."""
    if action["target"] == "*":
        return _OF_ALL_WORKERS.get(action["kind"])
    return _OF_ACTIONS.get(action["kind"])


def _happening_of(event: Mapping[str, Any], kind: _Kind) -> _Happening:
    """Return what an event reports."""
    details = event["details"]
    target = details["key"] or details.get("limit", "")
    if kind in (_SWITCH_OFF, _SWITCH_ON):
        target = "*"
    until_at = None
    with suppress(ValueError):  # of what has no end
        until_at = datetime.fromisoformat(details.get("until", "")).timestamp()
    return _Happening(kind.action, target, until_at)


def _text(target: str, text: str, author: str) -> str:
    """Return in words what has happened to a target, if it is something that has one."""
    if target == "*":
        text = f"all workers {text}"
    elif target:
        text = f"{target} {text}"
    if author:
        text += f" by {author}"
    return text


def marks_by_step(marks: Iterable[Mark], start_at: float, step_s: float, steps: int) -> dict[int, list[Mark]]:
    """Return the marks of each step, by its index."""
    found: dict[int, list[Mark]] = {}
    for mark in marks:
        step = int((mark.at - start_at) // step_s)
        if 0 <= step < steps:
            found.setdefault(step, []).append(mark)
    return found


def described(marks: Iterable[Mark]) -> str:
    """Return the marks of one step in words."""
    texts = list(dict.fromkeys(mark.text for mark in marks))
    named = "; ".join(texts[:_PER_STEP])
    if len(texts) > _PER_STEP:
        return f"{named}; {len(texts) - _PER_STEP} more"
    return named
