"""One request in one middleware: its client, its decisions, and the two channels that its application gets.

A visit refers to its scope, and the scope to the innermost visit. When the visit is over, a `Record` takes its place in
the scope, for `decision_of`, `charge` and `settle`: the client, and the decisions of all middlewares about the request,
which share one list.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from ..core.bans.policy import BanPolicy
from ..core.buckets import Check
from ..core.decision import Decision, Reason
from ..core.errors import ConfigurationError
from ..limiter.waiters import Name
from .clients import KEY, Client, outside, record_of
from .headers import Field, Fields, complete, joined
from .plan import Plan

STARTS: Final = {"http.response.start": 200, "websocket.accept": 101, "websocket.http.response.start": 403}
"""The messages that start a response and have header fields, and the default status of each."""
FAILED: Final = 500
"""The status that a server sends if the application raises before it answers."""
CLOSED: Final = 403
"""The status that servers send for a close before the handshake is accepted."""
_LASTS: Final = (".body", ".pathsend", ".zerocopysend", "websocket.close")
"""How the kinds of messages end that end a response, unless more of the body follows. Trailers come after the end."""
UNCOUNTED: Final = (Reason.ALLOWLISTED, Reason.DISABLED)
"""Why nothing at all counts a request."""


class BrokenWait(NamedTuple):
    """A wait that ended before the request had its turn.

    Attributes:
        policy: The policy of the middleware in which it waited.
        refusal: What is recorded as the decision about the request.
        has_left: Whether the client has left. Else the wait was cancelled, which ends the request, unless a timeout
            within the application has done so.
        status: The status that was sent before; 0 if there was none.
    """

    policy: object
    refusal: Decision
    has_left: bool
    status: Any


class Record:
    """What is known of a request in one middleware: its client and the decisions; also when it is over.

    Attributes:
        policy: The `Policy` of the middleware.
        client: The client, determined when the request arrived.
        plan: What the request has in common with others.
    """

    policy: Any
    client: Client
    plan: Plan
    own: tuple[Decision, ...] = ()
    """The decisions of this middleware: about its rules, then about limits at endpoints within."""
    outer: Record | None = None
    """The same of the middleware around this one."""
    shared: list[tuple[Any, Decision]] | None = None
    """The decisions of all middlewares about the request, each with its policy, if there are several middlewares."""
    struck: tuple[BanPolicy, ...] = ()
    """The ban policies that the request has struck."""

    def with_outer(self) -> Iterator[Record]:
        """Yield this visit and those around it."""
        visit: Record | None = self
        while visit is not None:
            yield visit
            visit = visit.outer

    def active(self) -> Visit | None:
        """Return this visit, or if it is over, the innermost one around it that is not; None if all are over."""
        if self.outer is None:
            return None
        return self.outer.active()

    def resumed(self, scope: Scope, receive: Receive, send: Send) -> Visit:
        """Return a visit that goes on where one ended, for an exception handler around its middleware."""
        visit = Visit.__new__(Visit)
        visit.policy, visit.client, visit.plan, visit.own = self.policy, self.client, self.plan, self.own
        # Nothing strikes any more, so it has no `struck`.
        visit.scope, visit.channel, visit.send_on, visit.effects = scope, receive, send, ()
        visit.outer, visit.shared = self.active(), self.shared
        visit.is_plain = False
        return visit

    @property
    def decisions(self) -> Sequence[tuple[Any, Decision]]:
        """The decisions of all middlewares about the request so far, each with its policy."""
        if self.shared is not None:
            return self.shared
        return [(self.policy, decision) for decision in self.own]

    @property
    def refusal(self) -> Decision | None:
        """The refusal of this middleware that stands: nothing has decided the request again after it."""
        if not self.own or self.own[-1].allowed:
            return None
        last = self.own[-1]
        if self.shared is not None and self.shared[-1][1] is not last:
            return None
        return last

    @property
    def decision(self) -> Decision:
        """The last decision that refuses the request, else the last one that a limit made, else the last one.

        A refusal after which the request was decided again is none of them.

        Raises:
            ConfigurationError: There is no decision yet.
        """
        decisions = [decision for _, decision in self.decisions]
        if not decisions:
            raise ConfigurationError(
                "decision_of(request): nothing is decided about this request yet; call it in the application, not in a "
                "function of a rule"
            )
        last = decisions[-1]
        if last.readings or not last.allowed:
            return last
        counted = [decision for decision in decisions if decision.readings and decision.allowed]
        return counted[-1] if counted else last

    @property
    def is_enforced(self) -> bool:
        """Whether ban policies and limits at endpoints are enforced: the client is on no list, and nothing is off."""
        return self.client.verdict is None and not (self.own and self.own[0].reason is Reason.DISABLED)

    @property
    def may_be_struck(self) -> bool:
        """Whether ban policies strike for the request."""
        return not self.plan.is_exempt and self.is_enforced


class Visit(Record):
    """One request in one middleware.

    Args:
        policy: The `Policy` of the middleware.
        scope: The scope of the request.
        receive: Its receive channel.
        send: Sends to the client.
        client: The client, determined when the request arrived.
        plan: What it has in common with others.

    Attributes:
        scope: The scope; None once the visit is over.
        channel: Where `receive` reads: the channel of the request, or what was put in front of it.
        send_on: Sends to the client.
        effects: What still depends on the status or the end of the response.
    """

    status: Any = 0  # of whatever type the application sends
    """The status of the response; 0 before its first message."""
    is_plain = True
    """Whether the response needs no more fields than those of the only decision. False from the second decision on,
    within or around another middleware, and when a refusal needs fields."""
    taken: tuple[str, ...] = ()
    """The names that middlewares within have given to limits in the fields of the response."""
    needed: Fields | None = None
    """The fields that a refusal needs: while it stands, they are added to the response where they are missing."""
    is_complete = False
    """Whether the last message of the response was sent."""
    is_within = False
    """Whether an application around the middleware answers exceptions; set before `end` is called with one."""
    began_ns = 0
    """When the request arrived, by `Engine.clock`, if its outcome is reported."""
    observed: tuple[Sequence[Check], ...] = ()
    """What shadow rules have charged."""
    shadowed: tuple[tuple[object, str], ...] = ()
    """The labels of the shadow rules that would have refused the request, in this middleware or within, each with the
    policy of the middleware."""
    exempted: tuple[object, ...] = ()
    """The policies of the middlewares within whose ban policies ignore the request."""
    banned_us = 0
    """The length of the longest ban that a refusal of the request has caused."""
    permits: tuple[tuple[Name, str], ...] = ()
    """The queues of fair rules of which it has a permit, each with the tenant."""
    broken_wait: BrokenWait | None = None
    """The wait, here or within, that ended before the request had its turn; None for none."""

    def __init__(self, policy: Any, scope: Scope, receive: Receive, send: Send, client: Client, plan: Plan) -> None:
        outer: Record | None = scope.get(KEY)
        if outer is not None:
            self._join(outer)
            self._exempt_by(policy, plan)
        self.policy = policy
        self.scope: Any = scope
        self.channel = receive
        self.send_on = send
        self.client = client
        self.plan = plan
        self.effects = plan.effects
        scope[KEY] = self

    def _join(self, last: object) -> None:
        """Join the visits of the middlewares around this one, which share a list of decisions.

        Args:
            last: The latest visit of the request, or what is left of it.
        """
        if not isinstance(last, Record):  # something else has written into the scope
            return
        outer = last.active()
        if outer is None:  # the scope is used again, by a retry outside of all middlewares: a new request
            return
        if outer.shared is None:
            outer.shared = [(outer.policy, decision) for decision in outer.own]
        around = [one.policy for one in outer.with_outer()]
        standing = [decided for decided in outer.shared if decided[0] in around]
        if len(standing) < len(outer.shared):  # a retry or a fallback within, which is a new request for this one
            outer.shared[:] = standing
            for one in outer.visits():
                one.forget_within(around)
        self.outer, self.shared, self.is_plain = outer, outer.shared, False

    def leave(self) -> None:
        """End the visit. The scope keeps what is known, and no channel, as those of a server refer to the scope."""
        scope, self.scope = self.scope, None
        record = Record()
        record.policy, record.client, record.plan = self.policy, self.client, self.plan
        record.own, record.struck = self.own, self.struck
        record.outer, record.shared = self.outer, self.shared
        last = scope.get(KEY)
        if last is self:
            scope[KEY] = record
            return
        if not isinstance(last, Record):  # an application has emptied its scope
            return
        for one in last.with_outer():  # those of middlewares within
            if one.outer is self:
                one.outer = record

    def visits(self) -> Iterator[Visit]:
        """Yield this visit and those around it."""
        for one in self.with_outer():
            if isinstance(one, Visit):
                yield one

    def forget_within(self, around: Sequence[object]) -> None:
        """Forget what middlewares within have noted of an earlier use of the scope.

        Args:
            around: The policies of the middlewares that are not within.
        """
        self.shadowed = tuple([one for one in self.shadowed if one[0] in around])
        self.exempted = tuple([one for one in self.exempted if one in around])
        if self.broken_wait is not None and self.broken_wait.policy not in around:
            self.broken_wait = None

    def _exempt_by(self, policy: object, plan: Plan) -> None:
        """Tell the visits around this one whether its plan exempts the request."""
        if plan.is_exempt:
            for one in self.visits():
                if one is not self:
                    one.exempted = (*one.exempted, policy)

    def follow(self, plan: Plan) -> None:
        """Follow another plan, because the conditions of the first one are evaluated."""
        self._exempt_by(self.policy, plan)
        self.plan = plan
        self.effects = [*self.effects, *plan.effects]

    @property
    def has_left(self) -> bool:
        """Whether the client has left while the request waited, so that nobody was refused."""
        return self.broken_wait is not None and self.broken_wait.has_left

    def break_wait(self, refusal: Decision, *, has_left: bool) -> None:
        """Note, here and around, that a wait has ended before the request had its turn."""
        for one in self.visits():
            if not one.has_left:
                one.broken_wait = BrokenWait(self.policy, refusal, has_left, one.status)

    # -- decisions -----------------------------------------------------------------------------------------------------

    def active(self) -> Visit | None:
        """See `Record.active`."""
        if self.scope is not None:
            return self
        return super().active()

    def add_decision(self, decision: Decision) -> None:
        """Record a decision of this middleware."""
        if self.own:
            self._take_back(self.own[-1])
        self.own = (*self.own, decision)
        if self.shared is not None:
            self.shared.append((self.policy, decision))

    def _take_back(self, last: Decision) -> None:
        """Take back what the response says of the last decision, because another one follows."""
        self.needed = None
        if not last.allowed:  # it was caught, and the response does not tell of it
            self.own = self.own[:-1]
        if last.readings or not last.allowed or self.plan.rendered is not None:
            self.is_plain = False  # the response tells of two decisions, or of one that was not planned

    def need(self, fields: Fields) -> None:
        """Add the fields that the last decision, a refusal, needs to the response, whoever makes it."""
        self.needed, self.is_plain = fields, False

    # -- the channels of the application -------------------------------------------------------------------------------

    def receive(self) -> Awaitable[Message]:
        """Receive a message for the application, from the channel as it is by then."""
        return self.channel()

    def send(self, message: Message) -> Awaitable[None]:
        """Send a message of the response. Not a coroutine function: most messages need no await of their own."""
        if self.status:
            if self.effects and _is_last(message):
                return self._end_with(message)
            return self.send_on(message)
        kind = message["type"]
        if kind in STARTS:
            status = message.get("status") or STARTS[kind]
            for effect in self.effects:
                if effect.statuses is None or status in effect.statuses:
                    return self._start(message, status)
            if not self.is_plain:
                message = self.with_fields(message)
                self.status = status
                return self.send_on(message)
            # As `with_fields` does; a call, and a second look at `is_plain`, would cost each request.
            decision = self.own[-1]
            if decision.readings:
                plan = self.plan
                rendered = plan.rendered or plan.headers.of(decision.checks)
                message = message.copy()  # type: ignore[attr-defined]  # an application may send it several times
                message["headers"] = rendered.added_to(message.get("headers", ()), decision)
            self.status = status
            return self.send_on(message)
        if kind == "websocket.close":
            return self._start(message, CLOSED)
        return self.send_on(message)

    def with_fields(self, message: Message) -> Message:
        """Return the first message with the fields of the decisions that stand, and those that a refusal needs."""
        if self.is_plain:
            decision = self.own[-1]
            if not decision.readings:
                return message
            rendered = self.plan.rendered or self.plan.headers.of(decision.checks)
            return {**message, "headers": rendered.added_to(message.get("headers", ()), decision)}
        return self._with_all_fields(message)

    def _with_all_fields(self, message: Message) -> Message:
        """Return it with the fields of several decisions, or with those of a refusal that an application answers.

        The middleware around this one, whose turn comes next, takes note of the names that stand in it.
        """
        fields: list[Field] = [*message.get("headers", ())]
        names = self.taken
        refusal = self.refusal
        shown = joined([one for one in self.own if one.allowed or one is refusal])
        if shown is not None:
            rendered = self.plan.headers.of(shown.checks, self.taken)
            fields = rendered.added_to(fields, shown)
            names = (*names, *rendered.names_in(shown))
        if isinstance(self.outer, Visit):
            self.outer.taken, self.outer.is_plain = names, False
        if refusal is not None and self.needed and message["type"].endswith("http.response.start"):
            complete(fields, self.needed)
        return {**message, "headers": fields}

    # -- effects -------------------------------------------------------------------------------------------------------

    async def _start(self, message: Message, status: Any) -> None:
        """Let the effects of the status happen, which may change what the fields say, then send the first message."""
        await self._happen_at_start(status)
        if message["type"] in STARTS:
            message = self.with_fields(message)
        self.status = status
        if _is_last(message):
            await self._end_with(message)
        else:
            await self.send_on(message)

    async def _happen_at_start(self, status: Any) -> None:
        effects, self.effects = self.effects, [effect for effect in self.effects if effect.ends]
        for effect in effects:
            waiting = effect.start(self, status)
            if waiting is not None:
                await waiting

    async def _end_with(self, message: Message) -> None:
        """Send the last message, and end. What the application does afterwards has no part in the response."""
        await self.send_on(message)
        self.is_complete = True
        await self.end(None)

    async def end(self, error: BaseException | None) -> None:
        """Let the remaining effects happen: the response is complete, or the application has returned or raised.

        Args:
            error: What the application has raised.
        """
        try:
            if error is not None and is_failure(error) and not self.status:
                await self._happen_at_start(self.answered(error) or FAILED)  # the server will answer so
        finally:
            effects, self.effects = self.effects, ()
            for effect in effects:
                waiting = effect.end(self, error)
                if waiting is not None:
                    await waiting

    def answered(self, error: BaseException | None) -> int:
        """Return the status with which an application around the middleware answers an exception; 0 if none does."""
        if self.is_within and isinstance(error, HTTPException):
            return error.status_code
        return 0


def _is_last(message: Message) -> bool:
    """Return whether a message is the last one of a response."""
    return message["type"].endswith(_LASTS) and not message.get("more_body", False)


def is_failure(error: BaseException) -> bool:
    """Return whether a server answers an exception with 500, which it does not when the client has disconnected."""
    return isinstance(error, Exception) and not isinstance(error, (ClientDisconnect, WebSocketDisconnect))


def active_visit_of(request: HTTPConnection, who: str) -> Visit | None:
    """Return the visit of the innermost middleware that a request is in now, as `record_of` returns its record.

    Raises:
        ConfigurationError: As for `record_of`, or all middlewares around the endpoint have ended.
    """
    record: Record | None = record_of(request, who)
    if record is None:
        return None
    visit = record.active()
    if visit is None:
        raise outside(who)
    return visit
