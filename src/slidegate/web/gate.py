"""One gate at work: the way of a request from the judgement to the answer.

`RequestGate.serve` asks the judge, adds the decision to the record, and passes the request on or answers it. Around a
request that it passes on, it puts the channels that the decision asks for: one that waits, one that settles reserved
units, one that strikes for a status, and a websocket that ends with a ban.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from ..core.decision import Bucket, Decision
from ..limiter import Limiter
from ..limiter.waiting import may_wait
from .answers.refusal_events import RefusalEvents
from .answers.refusals import Refusals
from .bans.outcomes import hear, listening
from .bans.signals import AbuseWatch
from .endpoints.rate_limit import EndpointBuckets
from .endpoints.refusal import answer_unanswered, is_limited, strike
from .judge import Beside, Judge
from .keys.client_ip import ClientAddress
from .paths.spared import find_spared
from .record import Record, Side, allowlisted
from .rules.rule_set import RuleSet
from .scope_keys import RECORD, is_preflight
from .settling import FAILED, Settling, is_failure
from .waiting import unless_left
from .websockets.ban_sweep import OpenSockets
from .websockets.message_limits import MessageCounter
from .websockets.watched import Watched


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
        look_back: Called with a request that a limit by user counted by its address, when its answer is complete.

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
        look_back: Callable[[Scope, Record], None],
    ) -> None:
        self._app = app
        self.refusal_events = RefusalEvents(limiter, client, refusals, app)
        self.side = Side(limiter, rules.names(), rules.looking, abuse, endpoints, refusals, self.refusal_events)
        self.judge = judge
        self.rules = rules
        self._client = client
        self._settling = settling
        self._refusals = refusals
        self._events = limiter.engine.events
        self._messages = messages
        self._look_back = look_back
        self._abuse = abuse
        self._strikes = bool(abuse.policies)
        self._prepares = messages is not None or bool(rules.reserving) or abuse.listens or rules.holds
        self.short = judge.at_once and rules.at_once and not abuse.policies
        self.sockets = OpenSockets(limiter.engine.find_ban)

    def look_for_tools(self) -> None:
        """Look for operators' tools below, whose requests no rule counts."""
        self.judge.spared = find_spared(self._app)

    def at_once(self) -> Judge | Beside | None:
        """Return the judge of the short way; None where all requests take the long one."""
        spared = self.judge.spared
        judge = self.judge if spared is None else Beside(self.judge, spared)
        return judge if self.short else None

    def buckets(self) -> list[Bucket]:
        """Return the buckets of rules, of endpoints and routes that were reached, of preflights and of messages."""
        bound = [*self.rules.bound(), *self.side.endpoints.met()]
        messages = () if self._messages is None else self._messages.buckets()
        return [*(bucket for rule in bound for bucket in rule.buckets()), *self._settling.buckets(), *messages]

    async def serve(self, scope: Scope, receive: Receive, send: Send, record: Record, *, outermost: bool) -> None:
        """Judge one request, and pass it on or answer it."""
        steps = record.steps
        side = record.side = self.side
        answer = self.judge.decide(scope, steps)
        decision = answer if isinstance(answer, Decision) else await answer
        spared = self._strikes and (decision.allowed or is_limited(decision)) and self._spares(scope)
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
        if self._prepares or scope["type"] == "websocket" or scope["method"] == "OPTIONS":
            receive, send = self._prepare(scope, receive, send, record, decision)
        try:
            await self._app(scope, receive, send)
        except Exception as error:
            await self._fail(scope, record, decision, error)
            if not await answer_unanswered(error, record, scope, receive, send):
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
        if (self._strikes or len(record.steps) > 1) and is_limited(decision):
            await strike(scope, record)
        if self._events.refused:
            await self.refusal_events.send(scope, receive, send, decision)
        else:
            await self._refusals.send(scope, receive, send, decision)

    def _spares(self, scope: Scope) -> bool:
        """Tell whether nothing of this request is held against its client: a rule exempts it, it is for an operators'
        tool, or a browser sends it by itself. The application may change the path that rules see, so it is asked before
        the application is."""
        if self.judge.spared is not None and self.judge.spared.find(scope) is not None:
            return True
        return self.rules.select(scope).exempt or (scope.get("method") == "OPTIONS" and is_preflight(scope))

    def _prepare(
        self, scope: Scope, receive: Receive, send: Send, record: Record, decision: Decision
    ) -> tuple[Receive, Send]:
        """Put the channels around a request that only some gates or requests need."""
        record.unfinished |= self.rules.holds
        if scope.get("method") == "OPTIONS" and is_preflight(scope):
            send = self._settling.by_endpoint(scope, send, decision)
        elif self.rules.reserving:
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
                await strike(scope, record)

        return Watched(record.read_ahead(receive), send, guarded, banned, struck, self.sockets.add)

    async def end(self, scope: Scope, receive: Receive, send: Send, record: Record) -> None:
        """Look back at a request when the application is done, and refuse it where nobody did."""
        self._look_back(scope, record)
        await record.end()
        await answer_unanswered(None, record, scope, receive, send)
