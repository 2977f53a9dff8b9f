"""The configuration common to containers and plain processes: commands, names of settings, options of Redis.

`compose.yaml`, `Dockerfile` and `nginx.conf` repeat it in their own formats; a test compares them.
"""

from __future__ import annotations

from typing import Final

SITE: Final = "examples.several_hosts.app:make_app"
FRONT: Final = "examples.several_hosts.front:make_app"
HOSTS: Final = ("host_a", "host_b")
PORT: Final = 8000
"""The port of a host in its container."""
SETTINGS: Final = ("HOST_NAME", "REDIS_URL", "SITE_SECRET", "ADMIN_TOKEN", "TRUSTED_PROXIES")
"""The environment variables that a host requires."""
REDIS_OPTIONS: Final = ("--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction")
"""Counts need no persistence here; if bans must survive a restart of Redis, enable its append-only file."""


def serving(app: str, address: str, port: int) -> list[str]:
    """Return the command that serves an application, as a list of arguments.

    The middleware evaluates `X-Forwarded-For`, so uvicorn must not replace the address of the peer.
    """
    return [
        *("uvicorn", "--factory", app, "--host", address, "--port", str(port)),
        *("--no-proxy-headers", "--no-access-log", "--timeout-graceful-shutdown", "5"),
    ]
