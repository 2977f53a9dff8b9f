"""The public class: a pure ASGI 3 middleware that every request passes through.

`__call__` shows what happens to a request, in order. What is known when the middleware is built is in its `policy`
(`policy.py`); one request is a `Visit` (`visit.py`), whose `send` adds the header fields to the first message of the
response; what depends on the status or the end of the response is an effect (`effects.py`). The checks of a request are
charged in one hit (`counting.py`); a refused request strikes (`signals.py`), is reported and answered (`refusals.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, ClassVar, Final, Protocol, TypedDict, Unpack

from anyio import to_thread
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..core.bans.policy import BanPolicy
from ..core.buckets import Bucket
from ..core.decision import Decision
from ..core.errors import ConfigurationError, quoted
from ..core.logs import logger
from ..core.networks import AnyNetworks
from ..core.options import options_checked
from ..limiter import Limiter
from ..limiter.named_limits import NamedLimit
from ..limiter.workers import PublishedRule
from .callbacks import request_in
from .client_ip import ClientAddress
from .effects import REPORT_OUTCOME
from .headers import HeaderStyles
from .keys import Key, KeyFunction
from .plan import DISABLED
from .policy import Finding, Policy
from .published import published_rules
from .refusals import OnRefused
from .routes import has_many_routes, layers, visible_app
from .rules import Limits, LimitsFunction, Rule
from .start import FailsAtStartup, compare_names, fail_startup, is_in_stack, stack_of
from .visit import Visit
from .waiting import discard_message
from .websockets import MessageLimits

_REQUESTS: Final = frozenset({"http", "websocket"})
ENABLED_VARIABLE: Final = "SLIDEGATE_ENABLED"
"""The environment variable that switches every middleware off, and none on that its option switches off."""
_HANDLERS: Final = "starlette.exception_handlers"
"""The scope key of the exception handlers of the innermost application that the request has come to."""
_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("0", "false", "no", "off")


async def _receive_disconnect() -> Message:
    return {"type": "http.disconnect"}


async def _receive_websocket_disconnect() -> Message:
    return {"type": "websocket.disconnect", "code": 1006}


async def _send_after_close(message: Message) -> None:
    """Fail as a server does whose websocket is closed (ASGI, "Send after disconnect")."""
    if message["type"] != "websocket.close":
        raise OSError("this websocket is closed")


_ENDED_CHANNELS: Final[Mapping[str, tuple[Receive, Send]]] = {
    "http": (_receive_disconnect, discard_message),
    "websocket": (_receive_websocket_disconnect, _send_after_close),
}
"""The channels of a request that is over, by the type of its scope: a task that outlives it finds the client gone."""


class FileOptions(TypedDict, total=False):
    """The options beside a file, for type checkers."""

    limiter: Limiter | None
    on_refused: OnRefused | None
    store: str


class _FromFile(Protocol):
    """What `RateLimitMiddleware.from_file` is, for type checkers."""

    def __call__(self, app: ASGIApp, path: str | PathLike[str] = "", **options: Unpack[FileOptions]) -> ASGIApp: ...


class RateLimitMiddleware(FailsAtStartup):
    """Counts requests and answers those over a limit with 429 and an exact `Retry-After`.

    Args:
        app: The application to guard.
        limits: Shorthand for one rule, ``rules=[Rule("*", limits)]``: ``"100/minute"`` for each client address.
        rules: The rules: which requests have which limits. Without `limits` and `rules` only limits at endpoints
            apply; they need a middleware around them.
        default_limits: Limits that apply to each route separately, in addition to the rules: ``"60/minute"``, or a
            function of the request. ``@RateLimit.exempt`` lifts them from an endpoint; a `RateLimit` adds to them.
        key: The key by which `limits`, `default_limits` and rules without their own key count, such as
            ``header("X-API-Key")``. The default is `client`.
        limiter: The limiter that counts. The default is a new one in memory.
        client: Determines the client's address, which is the default key of rules and is checked against the lists.
        blocklist: Networks that get a 403 before anything is counted: ``["192.0.2.0/24"]``, or `Networks`.
        allowlist: Networks that are neither refused nor counted. It is checked before the blocklist.
        bans: The ban policy for abusive clients, or several policies with distinct names.
        on_refused: A sync or async function that builds the response to a refused HTTP request from the request
            (without its body) and the decision, whose `status` is that of the default response. It returns None for
            the default.
        headers: ``"draft"`` (RateLimit and RateLimit-Policy of draft 11), ``"legacy"`` (X-RateLimit-*), both in a
            tuple, or None.
        messages: The limits for messages on an accepted websocket: ``MessageLimits("10/second")``.
        enabled: False switches the middleware off, as ``SLIDEGATE_ENABLED=0`` does.
        name: Stands in front of the names of its rules in the store, so that they count apart from rules of the same
            name in other middlewares.

    Attributes:
        app: The application behind the middleware.
        policy: Its parts, made from its options.
        limiter: The limiter that counts.
        rules: The rules, in order.
        lists: The blocklist and the allowlist, by option name.
        findings: Probable mistakes found at start-up or in the first requests. Each is logged once.
        routed_app: The application whose routes were checked: that behind the middleware, or if its routes are hidden,
            the one that it belongs to; None before the first call.

    Raises:
        ConfigurationError: An option is invalid; the message names what was expected. Within an application's
            middleware stack the error is sent as ``lifespan.startup.failed`` instead, see `start`.
    """

    file: PathLike[str] | None = None
    """The configuration file that its options come from; None if there is none."""
    options: tuple[object, ...] = ()
    """Its options as they were given but for `enabled`, in the order of the signature; none if it shares its counts."""
    routed_app: object = None
    _decides: frozenset[str] = frozenset()
    """The types of scopes that are decided without `_prepare`: none during the first requests, while switched
    off, and after a failed construction."""

    @options_checked
    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: Limits | LimitsFunction | None = None,
        rules: Sequence[Rule] | None = None,
        default_limits: Limits | LimitsFunction | None = None,
        key: Key | KeyFunction | None = None,
        limiter: Limiter | None = None,
        client: ClientAddress | None = None,
        blocklist: AnyNetworks | None = None,
        allowlist: AnyNetworks | None = None,
        bans: BanPolicy | Iterable[BanPolicy] | None = None,
        on_refused: OnRefused | None = None,
        headers: HeaderStyles | None = "draft",
        messages: MessageLimits | None = None,
        enabled: bool = True,
        name: str | None = None,
    ) -> None:
        options: dict[str, Any] = {**locals()}  # as they were given
        for argument in ("self", "app", "enabled"):
            del options[argument]
        self.app = app
        self.begin_with(Policy(app, options, stack_of(app)), enabled)
        if limiter is None or self.policy.names.unnamed:  # it counts apart from others
            self.options = tuple(options.values())
            self.policy.findings.report(self.policy.inspection.about_building(self))
        self.limiter.engine.register(self)

    def begin_with(self, policy: Policy, enabled: bool) -> None:
        """Begin to guard the application by a policy."""
        self.policy = policy
        self.limiter = policy.limiter
        self.rules = policy.rules.given
        self.lists = policy.lists
        self.findings = policy.findings.reported
        for file in policy.files:
            file.observe(self.limiter.engine.emit)
        off_by = setting_that_switches_off(enabled)
        self.is_enabled = not off_by
        policy.findings.report(policy.inspection.about_settings(policy, off_by))

    from_file: ClassVar[_FromFile]
    """The middleware that reads its options from a TOML file, and again when the file changes: `ReloadingMiddleware`,
    which stands above this one, so that the package puts it here."""

    # -- what others read ----------------------------------------------------------------------------------------------

    def buckets(self) -> list[Bucket]:
        """Return all buckets, including those of routes and endpoints that were requested so far."""
        return self.policy.buckets()

    def limits_by_name(self) -> list[NamedLimit]:
        """Return the limits that operators can change."""
        return [limit for bound in self.policy.rules.bound() for limit in bound.named]

    def published(self) -> Iterable[PublishedRule]:
        """Return what other workers, and tools, may know of its rules; nothing if it is switched off in code."""
        if not self.is_enabled:
            return ()
        number = [*self.limiter.engine.callers.all(), self].index(self)  # a reload may have just replaced it
        name = self.policy.names.middleware
        return [rule._replace(middleware=name, number=number) for rule in published_rules(self.policy)]

    def restart(self) -> None:
        """Treat the next request like the first one: after a fork, a switch, or a change of an amount."""
        self._decides = frozenset()
        self.policy.restart()

    # -- requests ------------------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: C901 - the way of a request
        """Decide one request, then call the application or refuse the request."""
        scope_type = scope["type"]
        if scope_type not in self._decides:
            if not await self._prepare(scope):
                await self._pass_on(scope, receive, send)
                return
            send = self._inspected(scope, send)
        policy = self.policy
        client = policy.clients.of(scope)  # once: nothing asks the scope for it again
        plan = policy.rules.always
        if client.verdict is not None:
            plan = policy.rules.nothing  # on a list: no rule and no honeypot
        elif plan is None or scope.get("method") == "OPTIONS":  # perhaps a preflight
            plan = policy.rules.match(scope)
        visit = Visit(policy, scope, receive, send, client, plan)
        try:
            if policy.observers.requests and not visit.is_reported:
                visit.began_ns = policy.engine.clock.monotonic_ns()
                visit.effects = [REPORT_OUTCOME, *visit.effects]  # in front of those that are awaited
            if plan.is_direct:  # limits alone, as for most requests: bans and limits, in one hit
                answer = policy.engine.hit(plan.checks(scope, client.key), client.subjects)
                decision = answer if isinstance(answer, Decision) else await answer
            else:  # lists, conditions, honeypots, functions, waits: in this order, there
                decision = await policy.counting.decide(visit)
                plan = visit.plan  # that of the conditions which are true
            if visit.shared is None:
                visit.own_decisions = (decision,)
            else:  # in several middlewares
                visit.add(decision)
            if decision.allowed:
                if plan.is_followed:
                    policy.engine.reservations.open(decision, plan.reserving)
                    if plan.shadows:
                        await policy.counting.observe(visit, plan.shadows, request_in(scope))
                await self.app(scope, visit.receive, visit.send)
            else:  # strikes, reports, the answer: in this order, there
                await policy.refusals.refuse(visit, decision)
            if visit.effects:
                await visit.end()
        except BaseException as error:
            await visit.fail(error, self._handlers_around(scope))
            raise
        finally:  # the visit stays in the scope, without what refers to the server
            visit.scope = None
            visit.receive_from, visit.send_on = _ENDED_CHANNELS[scope_type]

    def _handlers_around(self, scope: Scope) -> Any:
        """Return the exception handlers that are around the middleware in a request; None if nothing but the server is.

        Those of its own application are within it, and what is around them answers with 500.
        """
        if is_in_stack(self.app) or scope.get("app") in layers(self.app):
            return None
        return scope.get(_HANDLERS)

    # -- the first requests, and those while it is switched off --------------------------------------------------------

    async def _prepare(self, scope: Scope) -> bool:
        """Prepare for one of the first calls, or the first after a switch; return whether it is a request to decide."""
        if self.error is not None or not self.is_enabled:
            return False
        engine = self.limiter.engine
        await engine.refresh()
        if not engine.counts:
            return False
        if self.routed_app is None:  # the first call, which may be the lifespan
            self.routed_app = visible_app(self.app, {"app": scope.get("app", self.app)})
            is_within = _HANDLERS in scope
            if has_many_routes(self.routed_app):  # requests that come meanwhile are decided without it
                await to_thread.run_sync(self._start, is_within)
            else:
                self._start(is_within)
        return self.error is None and scope["type"] in _REQUESTS

    def _start(self, is_within: bool) -> None:
        """Look at the application: what is wrong with the names of its limits ends its start; all else is a finding.

        Args:
            is_within: Whether it is within another application, at a route or a mount. Then it has no start: it is met
                by a request, which it must not fail.
        """
        routed_app = self.routed_app
        if is_within:  # what is beside it meets no request of its own
            routed_app = self.app
        try:
            compare_names(self.policy, routed_app)
        except ConfigurationError as error:
            if is_within:
                self.policy.findings.report([Finding("SG143", str(error))])
            else:
                self.error = error
        except Exception:  # of something unknown within
            logger.exception("the names of limits cannot be compared")
        self.check_routes(self.routed_app)

    def _inspected(self, scope: Scope, send: Send) -> Send:
        """Look at one of the first requests for findings; return its `send`, which looks at the response as well."""
        if self.policy.findings.requests_left:
            send = self.policy.inspection.of_request(self.policy, scope, send)
        else:
            self._decides = _REQUESTS
            if not self.limiter.engine.counts:  # another thread has switched off meanwhile, and this would undo it
                self._decides = frozenset()
        return send

    def check_routes(self, routed_app: object) -> None:
        """Report the findings about rules and routes; see `routed_app`."""
        self.routed_app = routed_app
        self.policy.routes.read(routed_app)
        self.policy.inspection.of_routes(self.policy, self.app, routed_app)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what is not decided: a lifespan, or a request while the middleware is switched off."""
        if self.error is not None:
            await fail_startup(self.error, scope, receive, send)  # raises
        if scope["type"] == "lifespan":
            send = _accompanied(self, send)
        if scope["type"] not in _REQUESTS:
            await self.app(scope, receive, send)
            return
        policy = self.policy
        # For `client_key`, `decision_of` and the like within the application.
        channels = _ENDED_CHANNELS[scope["type"]]
        visit = Visit(policy, scope, *channels, policy.clients.of(scope), policy.rules.nothing)
        visit.add(DISABLED)
        try:
            await self.app(scope, receive, send)
        finally:
            visit.scope = None


def setting_that_switches_off(enabled: object) -> str:
    """Return the setting that switches a middleware off; empty if none does.

    Args:
        enabled: The option of the middleware.

    Raises:
        ConfigurationError: The value of the environment variable is unknown.
    """
    text = os.environ.get(ENABLED_VARIABLE, "").strip().lower()
    if text and text not in _TRUE + _FALSE:
        raise ConfigurationError(f"expected one of {', '.join(_TRUE + _FALSE)}, not {quoted(text)}", ENABLED_VARIABLE)
    if not enabled:
        return "enabled=False"
    if text in _FALSE:
        return f"{ENABLED_VARIABLE}={text}"
    return ""


def _accompanied(middleware: RateLimitMiddleware, send: Send) -> Send:
    """Return a lifespan `send` before whose reports the limiter's store is connected, and its background work ends.

    The first request need not wait for a connection; and many applications never close their limiter.
    """
    engine = middleware.limiter.engine

    async def send_after(message: Message) -> None:
        if message["type"] == "lifespan.startup.complete" and middleware.is_enabled:
            await engine.begin()
        if message["type"].startswith("lifespan.shutdown."):
            await engine.end()
        await send(message)

    return send_after
