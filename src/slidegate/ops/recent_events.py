"""The latest events and refusals of one worker, and how they are written in its row.

Messages are escaped and cut. Details are as they were, cut only: pages link to keys. Nothing contains the path or the
query of a request, which may be secret: a refusal names the template of its route.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from ..core.logs import escaped, safe_text
from ..events import Event, Outcome
from .facts import joined
from .rows import named
from .traffic import names_of

MAX_ALIKE: Final = 40
"""How many events of a ring a worker keeps."""
MAX_MESSAGE: Final = 256
MAX_DETAIL: Final = 128
MAX_DETAILS: Final = 8
APART: Final = ("", "refused", "exceeded", "shadow_refused", "banned")
"""Of these events clients cause as many as they like, so they displace neither each other nor the others."""
SUBJECTS: Final = ("client", "key")
"""The details of a refusal that name the client, and the key of the limit or the ban that refused it."""


class LoggedEvent(NamedTuple):
    """An event of one worker.

    Attributes:
        kind: The kind, for example ``"banned"``; ``"refused"`` for a refused request.
        message: One line for people, printable, at most 256 characters.
        time_us: When it happened, in microseconds of Unix time.
        details: The subjects of the message by name, not escaped, at most 128 characters each.
        worker: The name of the worker.
    """

    kind: str
    message: str
    time_us: int
    details: Mapping[str, str]
    worker: str


class RecentEvents:
    """The latest events of this worker: refusals, exceeded limits, bans and others.

    Attributes:
        has_unwritten: Whether some are not written yet.
    """

    def __init__(self) -> None:
        self._latest = {kind: deque[dict[str, Any]](maxlen=MAX_ALIKE) for kind in APART}
        self._refused = deque[Any](maxlen=MAX_ALIKE)
        self._changed_us = -1
        self.has_unwritten = False

    def add(self, event: Event) -> None:
        """Note an event."""
        if event.kind in ("limit_overridden", "limit_restored"):
            self._changed_us = event.time_us
        self._keep(event.kind, event.message, event.time_us, event.details)
        self.has_unwritten = True

    def add_refusals(self, refusals: Sequence[Outcome]) -> None:
        """Note refused requests."""
        if refusals:
            self._refused.extend(refusals)
            self.has_unwritten = True

    def _keep(self, kind: str, message: str, time_us: int, details: Mapping[str, object]) -> None:
        """Keep an event or a refusal for the row of this worker, by the names of `LoggedEvent`."""
        texts = {
            name: safe_text(value, is_message=True)[:MAX_DETAIL] for name, value in islice(details.items(), MAX_DETAILS)
        }
        entry = {"kind": kind, "message": escaped(message, MAX_MESSAGE), "time_us": time_us, "details": texts}
        # Bans in shadow are with the other bans, and "" is the ring of all kinds that are not apart.
        self._latest.get(kind.replace("shadow_banned", "banned"), self._latest[""]).append(entry)

    def entries(self) -> list[dict[str, Any]]:
        """Return the events and refusals for the row of this worker."""
        while self._refused:  # other threads may add some
            outcome = self._refused.popleft()
            refusal = outcome.refusal
            names = ", ".join(names_of(outcome, refusal))
            details = {"client": outcome.client, "key": outcome.client, "rule": names, "limit": ""}
            details |= named(outcome, "reason", "route", "status")
            binding = refusal.binding
            if binding is not None:
                details["key"] = binding.key
                # A limit has the amount of now, which after a change may not be the one that has refused the request.
                if outcome.began_us > self._changed_us:
                    details["limit"] = binding.limit
            if refusal.ban is not None:
                details["key"] = refusal.ban.key
            message = f"{outcome.client} was refused: {joined(outcome.reason, names)}"
            self._keep("refused", message, outcome.began_us + outcome.duration_us, details)
        return list(chain.from_iterable(self._latest.values()))
