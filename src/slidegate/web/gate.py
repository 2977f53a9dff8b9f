"""One gate at work: the way of a request from the judgement to the answer.

`RequestGate.serve` asks the judge, adds the decision to the record, and passes the request on or answers it. Around a
request that it passes on, it puts the channels that the decision asks for: one that waits, one that settles reserved
units, one that strikes for a status, and a websocket that ends with a ban.
"""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from ..core.decision import Bucket, Decision, Reason
from ..limiter import Limiter
from ..limiter.waiting import may_wait
from .answers.refusal_events import RefusalEvents
from .answers.refusals import Refusals, refused_by
from .bans.outcomes import hear, listening
from .bans.signals import AbuseWatch
from .callbacks import UserCallbacks
from .endpoints.endpoint_buckets import EndpointBuckets
from .endpoints.rate_limit import carries_only_refusals
from .judge import Judge
from .keys.client_ip import ClientAddress
from .record import Record, Side, allowlisted
from .rule_set import RuleSet
from .scope_keys import RECORD, is_preflight
from .settling import FAILED, Settling, is_failure
from .waiting import unless_left
from .websockets.ban_sweep import OpenSockets
from .websockets.message_limits import MessageCounter
from .websockets.watched import Watched

_NOBODY: Final = Reason.NOBODY  # CPython 3.11 takes a call to find a member


class RequestGate:
    """Takes requests to the application, or answers them.

    Args:
        app: The application behind the gate.
        limiter: Where the counts live.
        judge: Decides.
        rules: The rules of the gate.
        abuse: Its ban policies.
        endpoints: The buckets of the limits at endpoints below it.
        client: Finds the client's address.
        settling: Settles reserved units.
        refusals: Answers refused requests.
        messages: Counts the messages of websockets, if they are limited.
        calls: Reports functions of the user's that fail.

    Attributes:
        side: The gate as its records show it.
        judge: Decides.
        rules: The rules of the gate.
        short: Whether limits alone decide about most requests, so that they may take the short way.
        sockets: The open websockets, which end when their client is banned.
        refusal_events: Tells of refused requests.
    """

    def __init__(
        self,
        app: ASGIApp,
        limiter: Limiter,
        judge: Judge,
        rules: RuleSet,
        abuse: AbuseWatch,
        endpoints: EndpointBuckets,
        client: ClientAddress,
        settling: Settling,
        refusals: Refusals,
        messages: MessageCounter | None,
        calls: UserCallbacks,
    ) -> None:
        self._app = app
        self.side = Side(limiter, rules.names(), rules.looking, abuse, endpoints, self.refuse)
        self.judge = judge
        self.rules = rules
        self._client = client
        self._settling = settling
        self._refusals = refusals
        self._events = limiter.engine.events
        self.refusal_events = RefusalEvents(limiter, client, refusals, app)
        self._messages = messages
        self._calls = calls
        self._abuse = abuse
        self._strikes = bool(abuse.policies)
        self._prepares = messages is not None or bool(rules.reserving) or abuse.listens or rules.holds
        self.short = judge.at_once and rules.at_once and not abuse.policies
        self.sockets = OpenSockets(limiter.engine.find_ban)

    def buckets(self) -> list[Bucket]:
        """Return the buckets of rules, of endpoints and routes that were reached, and of messages."""
        bound = [*self.rules.bound(), *self.side.endpoints.met()]
        messages = () if self._messages is None else self._messages.buckets()
        return [*(bucket for rule in bound for bucket in rule.buckets()), *messages]

    async def serve(self, scope: Scope, receive: Receive, send: Send, record: Record, *, outermost: bool) -> None:
        """Judge one request, and pass it on or answer it."""
        steps = record.steps
        side = record.side = self.side
        answer = self.judge.decide(scope, steps)
        decision = answer if isinstance(answer, Decision) else await answer
        spared = self._strikes and (decision.allowed or _is_limited(decision)) and self._spares(scope)
        record.note(decision, side, spared=spared)
        if not decision.allowed and self.rules.waits and may_wait(decision):
            turn = await self._wait(scope, receive, record)
            if turn is None:
                return
            receive, decision = turn, record.steps[-1].decision
        if not decision.allowed:
            if not outermost:
                await record.hand_back()
            await self.refuse(scope, receive, send, decision)
            return
        if self._prepares or scope["type"] == "websocket":
            receive, send = self._prepare(scope, receive, send, record, decision)
        try:
            await self._app(scope, receive, send)
        except Exception as error:
            await self._fail(scope, record, decision, error)
            if not self.has_refused(record, error) or not outermost:
                raise

    async def _fail(self, scope: Scope, record: Record, decision: Decision, error: Exception) -> None:
        """Settle reserved units, and strike, for the 500 that a server makes of an exception."""
        if record.refused is None and not record.answered and is_failure(error):
            await self._settling.settle(scope, decision, FAILED)
            if self._abuse.listens:
                await hear(500, scope, record, self.side)

    async def refuse(self, scope: Scope, receive: Receive, send: Send, decision: Decision) -> None:
        """Strike for a refusal by a limit, and answer the request."""
        record: Record = scope[RECORD]
        if (self._strikes or len(record.steps) > 1) and _is_limited(decision):
            await _strike(scope, record)
        if self._events.refused:
            await self.refusal_events.send(scope, receive, send, decision)
        else:
            await self._refusals.send(scope, receive, send, decision)

    def _spares(self, scope: Scope) -> bool:
        """Tell whether nothing of this request is held against its client: a rule exempts it, or a browser sends it by
        itself. The application may change the path that rules see, so it is asked before the application is."""
        return self.rules.select(scope).exempt or is_preflight(scope)

    def _prepare(
        self, scope: Scope, receive: Receive, send: Send, record: Record, decision: Decision
    ) -> tuple[Receive, Send]:
        """Put the channels around a request that only some gates or requests need."""
        record.unfinished |= self.rules.holds
        if self.rules.reserving:
            send = self._settling.by_answer(scope, send, decision)
        if self._abuse.listens and not record.steps[-1].spared:
            send = listening(scope, send, record, self.side)
        if scope["type"] == "websocket" and not allowlisted(record.steps):
            socket = self._watch_over(scope, receive, send, record)
            return (socket if self._messages is None else self._messages.attach(scope, socket)).channels
        return receive, send

    async def _wait(self, scope: Scope, receive: Receive, record: Record) -> Receive | None:
        """Wait in line, and note what came of it in the record.

        Returns:
            The channel to go on with; None if the client left meanwhile.
        """
        step = record.steps[-1]
        client_key, address = self._client.locate(scope)
        channel, guarded = record.read_ahead(receive), self._abuse.guarded(scope, client_key, address)
        record.waited = True
        limiter = self.side.limiter
        lines, refused = limiter.engine.lines, step.decision
        decision = await unless_left(channel, limiter, lambda: lines.wait(refused, guarded))
        if decision is None:
            return None
        step.decision, record.waited = decision, decision.allowed
        self.judge.note_units(decision)
        return channel

    def _watch_over(self, scope: Scope, receive: Receive, send: Send, record: Record) -> Watched:
        """Return a websocket that ends when its client is banned."""
        limiter, abuse = self.side.limiter, self._abuse
        client_key, address = self._client.locate(scope)
        guarded = abuse.guarded(scope, client_key, address)

        async def banned() -> bool:
            return await limiter.engine.find_ban(guarded) is not None

        async def struck() -> None:
            if not allowlisted(record.steps):  # by a gate further in, after this one has let the request through
                await _strike(scope, record)

        return Watched(record.read_ahead(receive), send, guarded, banned, struck, self.sockets.add)

    def has_refused(self, record: Record, error: BaseException) -> bool:
        """Tell whether a limit at an endpoint has refused the request, so that an exception ends here.

        Where the exception does not come from that limit, the outermost gate reports it.
        """
        if record.refused is None or not isinstance(error, Exception):
            return False
        if record.steps[0].side is self.side and not carries_only_refusals(error):
            rule = refused_by(record.refused)
            self._calls.report("endpoint", rule, error, "the client gets the refusal that came before")
        return True

    async def end(self, scope: Scope, send: Send, record: Record) -> None:
        """Look back at a request when the application is done, and refuse it where nobody did."""
        await record.end()
        if record.refused is not None and not record.answered:
            # Nobody in between answered; the outermost `send` makes the refusal of the first message.
            first = "http.response.start" if scope["type"] == "http" else "websocket.close"
            await send({"type": first, "status": 429})


async def _strike(scope: Scope, record: Record) -> None:
    """Strike for a refusal by a limit, under the policies of all gates on the way."""
    outer: list[AbuseWatch] = []
    for step in record.steps:
        if step.side.abuse.minds_refusals and not step.spared:
            await step.side.abuse.refused(scope, outer)
        outer.append(step.side.abuse)


def _is_limited(decision: Decision) -> bool:
    """Tell whether a limit decided: a refusal by a list or a ban has no readings."""
    return bool(decision.readings) or decision.reason is _NOBODY
