"""The figures that the outermost gate records about a request: once, however the request ends.

The first message out tells the outcome and the status, and by then routers have written the route into the scope. A
refusal is recorded then. The end of a request that passed is that of the last piece of the body; of a websocket, of the
application's call. Whatever comes after the end, such as a background task that fails, is not recorded. A request
without an end of its own was cancelled: the client left.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import ClientDisconnect
from starlette.types import Message, Scope
from starlette.websockets import WebSocketDisconnect

from ...core.decision import Decision, Reason
from ...limiter.figures.series import Series
from ..record import LEFT, Record
from ..scope_keys import STATUS
from .feed import Feed, class_of, counted_by, outcome

_WAITED: Final = Reason.WAITED


class Visit(Record):
    """The figures of one request, from its first message out to its last.

    Attributes:
        scope: The ASGI scope of the request, until the application is done.
        over: Whether the request is recorded; it is from the beginning where the gate keeps no statistics.
        feed: Records requests.
        began: When the request came, in ticks: the start of a microsecond.
        status: The status of the answer; 0 before its first message.
        series: The series that counts the request before its end, of a long answer for example.
    """

    __slots__ = ("_first_byte", "began", "feed", "over", "scope", "series", "status")

    _first_byte: int
    scope: Scope
    over: bool
    feed: Feed
    began: int
    status: int
    series: Series | None

    def begin(self, message: Message) -> None:
        """Record the first message out."""
        self._first_byte = self.feed.now()
        kind = message["type"]
        self.status = message.get("status") or STATUS[kind]
        answered = self.steps[-1].decision if self.refused is None else self.refused
        if not answered.allowed:
            self._refuse(answered, self._first_byte, self.status)
        elif kind != "http.response.start":
            self._start()

    def go_on(self, message: Message) -> None:
        """Record a piece of the body."""
        if not message.get("more_body", False):
            self.end("success")
        elif self.series is None:
            self._start()  # of a long answer not only when it is over

    def fail(self, error: BaseException) -> None:
        """Record an exception of the application, or its cancellation."""
        if self.over:
            return
        if isinstance(error, WebSocketDisconnect):
            self.leave()
        elif not isinstance(error, Exception) or isinstance(error, ClientDisconnect):
            self._give_up("cancelled")
        else:
            self._give_up("exception", 500)

    def leave(self) -> None:
        """Record that the application is done."""
        if not self.over:
            done = self.status and self.scope["type"] == "websocket"
            self._give_up("success" if done else "cancelled")

    def end(self, how: str) -> None:
        """Record the end of the answer."""
        self.over = True
        feed = self.feed
        ended = feed.now()
        if self.series is not None:
            self.series.note(outcome(how, rt=True), self.began, self._first_byte, ended)
            return
        if how == "success":
            feed.passed(self.scope, counted_by(self), self.status, self.began, self._first_byte, ended)
        else:
            what = outcome("pass", class_of(self.status), how, rt=True, first=True)
            feed.series_of_passed(self.scope, counted_by(self)).note(what, self.began, self._first_byte, ended)
        if self.waited:
            self._note_wait()

    def _give_up(self, how: str, status: int | None = None) -> None:
        """Record an end that is not that of the answer; `status` is the one that the server will send instead."""
        if self.status:
            self.end(how)
            return
        self.answered = self.over = True
        now = self.feed.now()
        left = self.refused is LEFT
        if self.steps and not left and self.own_answer():  # a client that was held in a tarpit, for example
            self._refuse(self.steps[-1].decision if self.refused is None else self.refused, now, status)
            return
        events = (how,) if status is None else (class_of(status), how)
        series = self.feed.series_of_passed(self.scope, counted_by(self))
        in_vain = any(step.decision.reason is _WAITED and not step.decision.charge for step in self.steps)
        if not self.steps or left or in_vain:
            series.note(outcome(*events), now, now, now)  # it never came to the application
        else:
            series.note(outcome("pass", *events, rt=True), self.began, self.began, now)

    def _start(self) -> None:
        """Record the outcome before the end."""
        self.series = self.feed.series_of_passed(self.scope, counted_by(self))
        self.series.note(
            outcome("pass", class_of(self.status), first=True), self.began, self._first_byte, self._first_byte
        )
        if self.waited:
            self._note_wait()

    def _refuse(self, refusal: Decision, now: int, status: int | None) -> None:
        """Record a refusal, with its status if it was answered."""
        self.over = True
        self.feed.refused(self.scope, refusal, status, now)

    def _note_wait(self) -> None:
        """Record that a request waited before it was let through."""
        series = self.feed.series_of_passed(self.scope, counted_by(self))
        series.note(outcome("occupied_pass"), self._first_byte, self._first_byte, self._first_byte)
