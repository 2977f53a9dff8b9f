"""One request in one middleware: its client, its decisions, and the two channels that its application gets.

The scope refers to the innermost visit, also when it is over, for `decision_of`, `charge` and `settle`: the client, and
the decisions of all middlewares about the request, which share one list. Then the visit has neither the scope nor the
channels of the server, which refer to the scope.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Iterator, Sequence
from typing import Any, Final

from starlette.requests import HTTPConnection
from starlette.types import Message, Receive, Scope, Send

from ..core.bans.policy import BanPolicy
from ..core.buckets import Check
from ..core.decision import Decision, joined
from ..core.errors import ConfigurationError, quoted
from ..limiter.engine import Engine
from .clients import KEY, Client
from .failures import answered_status, handler_of, is_failure
from .headers import Rendered, completed, names_in
from .plan import EXEMPT, Plan

STARTS: Final = {"http.response.start": 200, "websocket.accept": 101, "websocket.http.response.start": 403}
"""The messages that start a response and have header fields, and the default status of each."""
CLOSED: Final = 403
"""The status that servers send for a close before the handshake is accepted."""
_FIRSTS: Final = {**STARTS, "websocket.close": CLOSED}
"""The messages of which the first one answers a request, and the default status of each."""
_LASTS: Final = frozenset(
    {
        "http.response.body",
        "http.response.pathsend",
        "http.response.zerocopysend",
        "websocket.http.response.body",
        "websocket.close",
    }
)
"""The messages that end a response, unless more of the body follows. Trailers come after the end."""
_EXEMPT: Final = (EXEMPT,)  # the decisions about a request that nothing counts


class Effect:
    """Something that happens to a `Visit` when its response starts, or when it ends.

    Attributes:
        statuses: The statuses of responses for which `start` has to be called; None for all. An effect of no status
            remains when the status is known, and `end` is called; on others only if `start` was not, or was cancelled.
    """

    statuses: Collection[Any] | None = ()

    def start(self, visit: Visit, status: Any) -> Awaitable[object] | None:
        """Act when the status of a response is known, before its first message is sent."""

    def end(self, visit: Visit, error: BaseException | None) -> Awaitable[object] | None:
        """Act once: after the last byte of the response, or else when the application returns or raises.

        Args:
            error: What the application has raised; None if it has returned, or after the last byte.
        """


class Visit:
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
        receive_from: Where `receive` reads: the channel of the request, or what was put in front of it.
        send_on: Sends to the client.
        effects: What still depends on the status or the end of the response.
        own_decisions: The decisions of this middleware: about its rules, then about limits at endpoints within. A
            refusal is not among them once the request was decided again.
        status: The status of the response, of whatever type the application sends; 0 before its first message.
    """

    __slots__ = (  # what each request needs; the rest, which few need, is in the `__dict__` that they have then
        "__dict__",
        "client",
        "effects",
        "own_decisions",
        "plan",
        "policy",
        "receive_from",
        "scope",
        "send_on",
        "status",
    )

    outer: Visit | None = None
    """The visit of the middleware around this one."""
    shared: list[tuple[Any, Decision]] | None = None
    """The decisions of all middlewares about the request, each with its policy, if there are several."""
    answer: Any = None
    """The default `Answer` to the last refusal whose response passes `send`; None before there is one."""
    struck: tuple[BanPolicy, ...] = ()
    """The ban policies that the request has struck."""
    is_reported = False
    """Whether a middleware around its own, of the same limiter, reports its outcome."""
    began_ns = 0
    """When its middleware got the request, by the monotonic clock, if that reports its outcome."""
    was_waiting = False
    """Whether a wait of the request, here or within, was cancelled."""
    observed: tuple[tuple[Sequence[Check], str, bool], ...] = ()
    """What shadow rules have charged, here or within, each with its label and whether it would refuse the request."""

    def __init__(self, policy: Any, scope: Scope, receive: Receive, send: Send, client: Client, plan: Plan) -> None:
        self.policy = policy
        self.scope: Any = scope
        self.receive_from = receive
        self.send_on = send
        self.client = client
        self.plan = plan
        self.effects: Sequence[Effect] = plan.effects
        self.own_decisions: tuple[Decision, ...] = ()
        self.status: Any = 0
        last = scope.setdefault(KEY, self)
        if last is not self:
            self._join(last)
            scope[KEY] = self

    def _join(self, last: object) -> None:
        """Join the visits of the middlewares around this one, which share a list of decisions.

        Args:
            last: The latest visit of the request, or what is left of it.
        """
        if not isinstance(last, Visit):  # something else has written into the scope
            return
        outer = last.active()
        if outer is None:  # the scope is used again, by a retry outside of all middlewares: a new request
            return
        if outer.shared is None:
            outer.shared = [(outer.policy, decision) for decision in outer.own_decisions]
        # Without those of an earlier try within: a retry or a fallback is a new request for this middleware.
        around = [visit.policy for visit in outer.visits()]
        outer.shared[:] = [(policy, decision) for policy, decision in outer.shared if policy in around]
        self.outer = outer
        self.shared = outer.shared
        self.is_reported = any(visit.began_ns and visit.policy.engine is self.policy.engine for visit in outer.visits())

    def visits(self) -> Iterator[Visit]:
        """Yield this visit and those around it."""
        visit: Visit | None = self
        while visit is not None:
            yield visit
            visit = visit.outer

    def active(self) -> Visit | None:
        """Return this visit, or if it is over, the innermost one around it that is not; None if all are over."""
        for visit in self.visits():
            if visit.scope is not None:
                return visit
        return None

    # -- decisions -----------------------------------------------------------------------------------------------------

    @property
    def decisions(self) -> Sequence[tuple[Any, Decision]]:
        """The decisions of all middlewares about the request so far, each with its policy."""
        if self.shared is not None:
            return self.shared
        return [(self.policy, decision) for decision in self.own_decisions]

    def explain(self, decision: Decision) -> Decision:
        """Let a refusal that only reservations of other requests cause wait for them; return the decision."""
        reservations = self.policy.engine.reservations
        if decision.allowed or not reservations.by_window:  # what refuses without a wait asks before, to spare the call
            return decision
        decided = [earlier for _, earlier in self.decisions if earlier is not decision]
        explained: Decision = reservations.explain(decision, decided)
        return explained

    @property
    def refusal(self) -> Decision | None:
        """The refusal of this middleware that stands: nothing has decided the request again after it."""
        if not self.own_decisions:
            return None
        last = self.own_decisions[-1]
        if last.allowed:
            return None
        if self.shared is not None and self.shared[-1][1] is not last:  # another middleware decided after it
            return None
        return last

    @property
    def shadow_rules(self) -> tuple[str, ...]:
        """The labels of the shadow rules, here or within, that would have refused the request."""
        return tuple([label for _, label, refuses in self.observed if refuses])

    @property
    def observing_rules(self) -> tuple[str, ...]:
        """The labels of the shadow rules, here or within, that have counted the request."""
        return tuple([label for _, label, _ in self.observed])

    @property
    def may_be_struck(self) -> bool:
        """Whether ban policies strike for the request."""
        return self.plan.is_enforced and not self.plan.is_exempt

    def add(self, decision: Decision) -> None:
        """Record a decision of this middleware. A refusal before it was caught, and stands nowhere any more."""
        earlier = _without_refusal(self.own_decisions)
        if earlier == _EXEMPT:  # it says nothing beside another decision
            earlier = ()
        self.own_decisions = (*earlier, decision)
        if self.shared is None:
            return
        for visit in self.visits():
            if visit is not self:
                visit.own_decisions = _without_refusal(visit.own_decisions)
        if self.shared and not self.shared[-1][1].allowed:
            self.shared.pop()
        self.shared.append((self.policy, decision))

    # -- header fields -------------------------------------------------------------------------------------------------

    def with_fields(self, message: Message) -> Message:
        """Return the first message with the fields of the decisions that stand, and those that a refusal needs."""
        refusal = self.refusal
        if refusal is None:
            return self._with_limits(message)
        answer = self.answer
        if len(self.own_decisions) == 1 and self.shared is None and answer.rendered is not None:
            message = answer.rendered.added_to(message, refusal)
        else:
            message = self._with_limits(message)
        if message["type"].endswith("http.response.start"):  # also that of a websocket
            message = completed(message, answer.needed)
        return message

    def _with_limits(self, message: Message) -> Message:
        """Return the first message with the fields of the limits in the decisions that stand."""
        decision = joined(self.own_decisions)
        taken: Sequence[str] = ()
        if self.shared is not None:
            taken = names_in(message)
        rendered: Rendered = self.policy.headers.render(decision.checks, taken)
        return rendered.added_to(message, decision)

    # -- effects -------------------------------------------------------------------------------------------------------

    async def _start_effects(self, status: Any) -> None:
        """Let the effects of the status happen; those of the end remain."""
        effects = self.effects
        remaining = [*effects]
        self.effects = remaining
        for effect in effects:
            if effect.statuses != ():
                waiting = effect.start(self, status)
                if waiting is not None:
                    await waiting
                remaining.remove(effect)  # not if it is cancelled: then it has its end, as those behind it have

    async def fail(self, error: BaseException, handlers: Any) -> None:
        """Let the remaining effects happen: the application has raised an exception.

        Args:
            handlers: The exception handlers around the middleware; None if the server answers.
        """
        status = 0
        raised: BaseException | None = error
        if is_failure(error) and not self.status:
            handler = handler_of(error, handlers)
            status = answered_status(error, handler, self.scope)
            if handler is not None:
                raised = None  # its answer is no failure
        try:
            if status:
                await self._start_effects(status)
            if raised is None:
                self.status = status
        finally:
            await self.end(raised)

    async def end(self, error: BaseException | None = None, last: Message | None = None) -> None:
        """Let the effects of the end happen. What the application does afterwards has no part in the response.

        Args:
            error: What the application has raised; None if it has returned, or the response is complete.
            last: The last message of the response, to send before; None if it was sent, or there is none.
        """
        if last is not None:
            await self.send_on(last)
        effects = self.effects
        self.effects = ()
        for effect in effects:
            waiting = effect.end(self, error)
            if waiting is not None:
                await waiting

    # -- the channels of the application -------------------------------------------------------------------------------

    def receive(self) -> Awaitable[Message]:
        """Receive a message for the application, from the channel as it is by then."""
        return self.receive_from()

    def send(self, message: Message) -> Awaitable[None]:
        """Send a message of the response. Not a coroutine function: most messages need no await of their own."""
        if self.status:
            if self.effects and message["type"] in _LASTS and not message.get("more_body"):
                return self.end(None, message)
            return self.send_on(message)
        if message["type"] == "http.response.start":
            status = message.get("status") or 200
            for effect in self.effects:
                if effect.statuses is None or status in effect.statuses:
                    return self._send_first(message, status)
            decision, *others = self.own_decisions
            if others or not decision.allowed or self.shared is not None:
                message = self.with_fields(message)
            else:  # one admission, as for most requests: the same, without its calls
                rendered = self.plan.rendered
                if rendered is None:
                    rendered = self.policy.headers.render(decision.checks)
                message = rendered.added_to(message, decision)
            self.status = status
            return self.send_on(message)
        kind = message["type"]
        if kind in _FIRSTS:
            return self._send_first(message, message.get("status") or _FIRSTS[kind])
        return self.send_on(message)

    async def _send_first(self, message: Message, status: Any) -> None:
        """Let the effects of the status happen, which may change what the fields say, then send the first message."""
        await self._start_effects(status)
        if message["type"] == "http.response.start":  # no effect is left that needs the status
            await self.send(message)
            return
        if message["type"] in STARTS:
            message = self.with_fields(message)
        self.status = status
        if self.plan.is_enforced:
            self.policy.guard(self)  # it takes the place of both channels
        await self.send_on(message)
        if message["type"] in _LASTS:
            await self.end()


def _without_refusal(decisions: tuple[Decision, ...]) -> tuple[Decision, ...]:
    """Return decisions without the last one if that refuses. Something is left, for `Visit.send`."""
    if decisions and not decisions[-1].allowed:
        return decisions[:-1] or _EXEMPT
    return decisions


def visit_of(request: HTTPConnection, caller: str) -> Visit | None:
    """Return the innermost visit of a request, which may be over.

    Args:
        request: The request, or the websocket.
        caller: The name of the calling function, for the error message.

    Returns:
        The visit; None without a middleware while limits are off, as in a test that calls an endpoint itself.

    Raises:
        ConfigurationError: There is no middleware around the endpoint, or `request` is no request.
    """
    scope = getattr(request, "scope", None)
    if scope is None:
        raise ConfigurationError(
            f"{caller}: expected a Request or WebSocket, for example request, not {quoted(request)}"
        )
    visit: Visit | None = scope.get(KEY)
    if visit is None and Engine.counting:
        raise outside(caller)
    return visit


def active_visit_of(request: HTTPConnection, caller: str) -> Visit | None:
    """Return the visit of the innermost middleware that a request is in now.

    Raises:
        ConfigurationError: As for `visit_of`, or all middlewares around the endpoint have ended.
    """
    innermost = visit_of(request, caller)
    if innermost is None:
        return None
    visit = innermost.active()
    if visit is None:
        raise outside(caller)
    return visit


def outside(caller: str) -> ConfigurationError:
    """Return the error for a call outside of all middlewares."""
    return ConfigurationError(
        f"{caller}: there is no RateLimitMiddleware around this endpoint; write "
        "app.add_middleware(RateLimitMiddleware), with rules or without, and as the last one if a handler for "
        "Exception calls this: a middleware around it may copy the scope"
    )
