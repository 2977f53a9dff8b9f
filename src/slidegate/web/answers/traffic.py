"""The figures that the outermost gate records about a request: once, however the request ends.

The first message out tells the outcome and the status, and by then routers have written the route into the scope. A
refusal is recorded then. The end of a request that passed is that of the last piece of the body; of a websocket, of the
application's call. Whatever comes after the end, such as a background task that fails, is not recorded. A request
without an end of its own was cancelled: the client left.
"""

from __future__ import annotations

from starlette.requests import ClientDisconnect
from starlette.types import Message, Scope
from starlette.websockets import WebSocketDisconnect

from ...core.decision import Decision
from ...core.statistics.buffered import MOST_NOTED
from ...limiter.figures.series import Series
from ..record import Record
from ..scope_keys import STATUS
from .feed import PASSED, Feed, class_of, counted_by, outcome


class Visit(Record):
    """The figures of one request, from its first message out to its last.

    Attributes:
        scope: The ASGI scope of the request, until the application is done.
        feed: Records the request; None when it is recorded, and from the beginning where the gate keeps no statistics.
        status: The status of the answer, from its first message on.
    """

    __slots__ = ("_began", "_first_byte", "_series", "feed", "scope", "status")

    _began: int
    _first_byte: int
    _series: Series
    """The series that counts the request before its end, of a long answer for example."""
    scope: Scope
    feed: Feed | None
    status: int

    def begin(self, message: Message, feed: Feed) -> None:
        """Record the first message out."""
        self._first_byte = feed.now()
        kind = message["type"]
        self.status = message.get("status") or STATUS[kind]
        answered = self.steps[-1].decision if self.refused is None else self.refused
        if not answered.allowed:
            self._refuse(feed, answered, self._first_byte, self.status)
        elif kind != "http.response.start":
            self._start(feed)

    def go_on(self, message: Message, feed: Feed) -> None:
        """Record a piece of the body."""
        if not message.get("more_body", False):
            self._end("success", feed)
        elif getattr(self, "_series", None) is None:
            self._start(feed)  # of a long answer not only when it is over

    def end_at_once(self, feed: Feed) -> None:
        """Record the end of a whole answer to a request that was let through at once: as `_end` does it."""
        first = self.first
        checks = first.checks
        scope = self.scope
        known = feed.known.get(id(scope.get("endpoint")))
        if (
            known is None
            or known[0] is not scope.get("router")
            or len(checks) != 1
            or checks[0][0] is not known[1]
            or (what := PASSED.get(self.status)) is None
        ):
            self._end("success", feed)
            return
        self.feed = None
        noted = known[2].noted
        now = feed.now  # CPython 3.11 takes twice as long to call an attribute as to read it and call then
        noted.append((what, first.now_us * feed.ticks_per_us, self._first_byte, now()))
        if len(noted) >= MOST_NOTED:
            known[2].fold()

    def fail(self, error: BaseException) -> None:
        """Record an exception of the application, or its cancellation."""
        feed = self.feed
        if feed is None:
            return
        if isinstance(error, WebSocketDisconnect):
            self.leave()
        elif not isinstance(error, Exception) or isinstance(error, ClientDisconnect):
            self._give_up("cancelled", feed)
        else:
            self._give_up("exception", feed, 500)

    def leave(self) -> None:
        """Record that the application is done."""
        feed = self.feed
        if feed is not None:
            done = self._has_begun() and self.scope["type"] == "websocket"
            self._give_up("success" if done else "cancelled", feed)

    def _has_begun(self) -> bool:
        return getattr(self, "status", None) is not None

    def _since(self, feed: Feed) -> int:
        """Return when the request came, in ticks: the start of a microsecond. A decision that was made at once tells
        it, and another look at the clock would take longer."""
        began: int | None = getattr(self, "_began", None)
        return self.first.now_us * feed.ticks_per_us if began is None else began

    def _end(self, how: str, feed: Feed) -> None:
        """Record the end of the answer."""
        self.feed = None
        ended = feed.now()
        series: Series | None = getattr(self, "_series", None)
        if series is not None:
            series.note(outcome(how, rt=True), self._since(feed), self._first_byte, ended)
            return
        if how == "success":
            feed.passed(self.scope, counted_by(self), self.status, self._since(feed), self._first_byte, ended)
        else:
            what = outcome("pass", class_of(self.status), how, rt=True, first=True)
            series = feed.series_of_passed(self.scope, counted_by(self))
            series.note(what, self._since(feed), self._first_byte, ended)
        if self.waited:
            self._note_wait(feed)

    def _give_up(self, how: str, feed: Feed, status: int | None = None) -> None:
        """Record an end that is not that of the answer; `status` is the one that the server will send instead."""
        if self._has_begun():
            self._end(how, feed)
            return
        self.answered, self.feed = True, None
        now = feed.now()
        left = self.waited and not self.steps[-1].decision.allowed
        if self.steps and not left and self.own_answer():  # a client that was held in a tarpit, for example
            self._refuse(feed, self.steps[-1].decision if self.refused is None else self.refused, now, status)
            return
        events = (how,) if status is None else (class_of(status), how)
        series = feed.series_of_passed(self.scope, counted_by(self))
        if not self.steps or left:
            series.note(outcome(*events), now, now, now)  # it never came to the application
        else:
            series.note(outcome("pass", *events, rt=True), self._since(feed), now, now)

    def _start(self, feed: Feed) -> None:
        """Record the outcome before the end."""
        what = outcome("pass", class_of(self.status), first=True)
        self._series = feed.series_of_passed(self.scope, counted_by(self))
        self._series.note(what, self._since(feed), self._first_byte, self._first_byte)
        if self.waited:
            self._note_wait(feed)

    def _refuse(self, feed: Feed, refusal: Decision, now: int, status: int | None) -> None:
        """Record a refusal, with its status if it was answered."""
        self.feed = None
        feed.refused(self.scope, refusal, status, now)

    def _note_wait(self, feed: Feed) -> None:
        """Record that a request waited before it was let through."""
        series = feed.series_of_passed(self.scope, counted_by(self))
        series.note(outcome("occupied_pass"), self._first_byte, self._first_byte, self._first_byte)
