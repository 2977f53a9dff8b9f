"""Limits and ban policies of a site with a login; docs/guides/bans.md tells where the numbers come from."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.types import ASGIApp

from slidegate import BanPolicy, Limiter, RateLimitMiddleware, Rule, client_ip

network = client_ip(ipv4_prefix=24, ipv6_prefix=56)


def is_wrong(status: int) -> bool:
    """Tell whether the answer to a login says that the password was wrong."""
    return status == 401


RULES = [
    Rule(["/admin/{rest:path}", "/dashboard/{rest:path}"], exempt=True),
    # Somebody who knows the password may log in as often as they like.
    Rule("/login", "5/minute", methods=["POST"], count_if=is_wrong, name="login"),
    # Four addresses of one network, each slower than that, are faster together than any honest network is.
    Rule("/login", "30/hour", methods=["POST"], key=network, name="login-network"),
    Rule("*", "600/minute", name="all"),
]

BANS = [
    BanPolicy(
        name="scanning",
        after="20/10m",
        duration="1h",
        factor=4,
        longest="7d",
        signals={
            # Not "4xx": 408 and 499 say that a connection was slow, and 429 that a limit has done its work.
            **dict.fromkeys((400, 403, 404, 405), 1),
            # Now and then a client asks for one of these and does nothing else that is odd, so it takes four to ban.
            **dict.fromkeys(("/.env", "/.git/config", "/wp-login.php", "/xmlrpc.php"), 5),
            **dict.fromkeys(("/.aws/credentials", "/phpinfo.php"), "ban"),
        },
    ),
    BanPolicy(name="guessing", after="20/1h", duration="1h", signals={401: 1}, key=network),
]


def subjects(site: ASGIApp, limiter: Limiter, proxies: Sequence[str] = ()) -> RateLimitMiddleware:
    """Put the middleware in front of a site.

    Args:
        site: The site.
        limiter: Counts for it.
        proxies: The networks of proxies that may name the client.
    """
    return RateLimitMiddleware(site, limiter=limiter, client=client_ip(trusted=proxies), rules=RULES, bans=BANS)
