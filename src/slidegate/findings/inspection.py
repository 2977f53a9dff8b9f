"""When each finding about a middleware is looked for."""

from __future__ import annotations

from typing import Any

from starlette.types import Message, Scope, Send

from ..web.client_ip import peer_of
from ..web.finding import Finding
from ..web.policy import Policy
from ..web.rules import Rule
from ..web.visit import STARTS, Visit
from . import requests, routes, settings


class Inspection:
    """Looks for the findings about one middleware, and reports them to its policy.

    Args:
        policy: The policy of the middleware.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._report = policy.findings.report
        self._first: list[tuple[str, int]] = []

    def of_settings(self, off_by: str) -> None:
        """Look at the settings; `off_by` is the one that switches the middleware off, or empty."""
        if off_by:
            text = f"slidegate is switched off ({off_by}): every request passes"
            self._report([Finding("SG110", f"{text}; if that is not intended, remove this setting")])

    def of_building(self, middleware: Any) -> None:
        """Look at how the middleware is built, if it counts apart from others."""
        self._report(settings.about_building(middleware))

    def of_rules(self) -> None:
        """Look at what needs no application: its processes, and the order of the rules."""
        self._report(settings.about_workers(self._policy.limiter))
        self._report(routes.about_order(self._policy.rules))

    def of_routes(self, app: object, routed_app: object) -> None:
        """Look at the rules and the routes, when the application starts.

        Args:
            app: The application that the middleware guards.
            routed_app: The application behind it, or if its routes are hidden, the one that it belongs to.
        """
        self.of_rules()
        self._report(routes.about_layers(self._policy, app, routed_app))
        self._report(routes.about_decorators(routed_app))
        self._report(routes.about_paths(self._policy.rules.given, routed_app))

    def of_request(self, scope: Scope, send: Send) -> Send:
        """Look at one of the first requests; return a `send` that looks at it again when its response starts."""
        policy = self._policy
        policy.findings.requests_left -= 1
        peer, client = peer_of(scope), policy.clients.of(scope)
        self._report(requests.about_request(policy, scope, client))
        if len(self._first) < requests.FIRST:
            named = [bytes(value) for name, value in scope["headers"] if name in requests.NAMING]
            self._first.append((client.key, hash(tuple(named))))
            self._report(requests.about_one_client(policy, self._first))
        had_user = requests.has_user(scope)

        async def compare_first(message: Message) -> None:
            if message["type"] in STARTS:
                self._report(requests.about_peer_within(policy.address, peer, scope, client.key))
                if not had_user and requests.has_user(scope):
                    self._report(requests.about_late_user(policy))
            await send(message)

        return compare_first

    def of_endpoint(self, visit: Visit, rule: Rule, scope: Scope) -> None:
        """Look at one of the first requests at an endpoint with a limit.

        Args:
            visit: The request in its middleware.
            rule: The limit at the endpoint.
            scope: The request at its endpoint.
        """
        self._report(requests.about_peer_within(self._policy.address, peer_of(visit.scope), scope, visit.client.key))
        if requests.counts_users(rule) and not requests.has_user(scope):
            visit.effects = [*visit.effects, requests.LateUser(rule, scope)]
