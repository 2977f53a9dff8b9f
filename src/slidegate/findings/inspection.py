"""When each finding about a middleware is looked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from starlette.types import Message, Scope, Send

from ..web.client_ip import peer_of
from ..web.policy import Policy
from ..web.routes import MountedRoute, mounted_routes
from ..web.visit import STARTS
from . import building, requests, routes, rules, settings
from .everybody import FirstRequests
from .report import Finding

_MAX_NAMED: Final = 10
"""The most rules and routes that findings of one kind name."""


class Inspection:
    """Looks for the findings about one middleware, and reports them to its policy.

    Args:
        policy: The policy of the middleware.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._report = policy.findings.report
        self._first = FirstRequests(policy)
        self._counts_users = any(requests.counts_users(rule) for rule in rules.counting_rules(policy))

    def of_settings(self, off_by: str) -> None:
        """Look at the settings; `off_by` is the one that switches the middleware off, or empty."""
        self._report(settings.about_switch(off_by))
        self._report(settings.about_configured_workers(self._policy.limiter))

    def of_building(self, middleware: building.Built) -> None:
        """Look at how the middleware is built, if it counts apart from others."""
        self._report(building.about_building(middleware))

    def of_rules(self, mounted: Sequence[MountedRoute] = ()) -> None:
        """Look at the rules; `mounted` are the routes below the middleware, as far as they are known."""
        self._report_some(rules.about_unreached_rules(self._policy.rules))
        self._report_some(rules.about_late_exemptions(self._policy.rules))
        self._report_some(rules.about_method_names(self._policy.rules.given, mounted))

    def of_routes(self, app: object, routed_app: object) -> None:
        """Look at the rules and the routes, when the application starts.

        Args:
            app: The application that the middleware guards.
            routed_app: The application behind it, or if its routes are hidden, the one that it belongs to.
        """
        policy = self._policy
        given = policy.rules.given
        mounted = mounted_routes(routed_app)
        self._report(settings.about_running_workers(policy.limiter))
        self.of_rules(mounted)
        self._report_some(routes.about_methods(given, mounted))
        self._report_some(routes.about_decorators(mounted))
        self._report(routes.about_cors_within(policy, app))
        self._report(routes.about_unknown_application(policy, routed_app))
        self._report_some(routes.about_unmet_paths(given, routed_app, mounted))

    def of_application(self, application: object) -> None:
        """Look at the application that a call belongs to; None if it is unknown."""
        self._report(routes.about_handlers(application))

    def _report_some(self, found: Iterator[Finding]) -> None:
        """Report findings of one kind, as many as are read."""
        self._report(islice(found, _MAX_NAMED))

    def of_request(self, scope: Scope, send: Send) -> Send:
        """Look at one of the first requests; return a `send` that looks at it again when its response starts."""
        policy = self._policy
        policy.findings.requests_left -= 1
        self._report(self._about_request(scope))
        peer = peer_of(scope)
        client_key, _ = policy.address.locate(scope)
        lacks_user = self._counts_users and not requests.has_user(scope)

        async def compare_first(message: Message) -> None:
            if message["type"] in STARTS:
                self._report(requests.about_peer_within(policy.address, peer, scope, client_key))
                if lacks_user:
                    self._report(requests.about_user_within(scope))
            await send(message)

        return compare_first

    def _about_request(self, scope: Scope) -> Iterator[Finding]:
        policy = self._policy
        yield from requests.about_shared_names(policy, scope)
        if policy.clients.has_lost_peer(scope):
            return
        yield from self._first.about_everybody(scope)
        yield from requests.about_missing_peer(policy.address, scope)
        yield from requests.about_untrusted_proxies(policy.address, scope)
