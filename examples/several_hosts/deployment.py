"""What containers and plain processes have in common: commands, names of settings, options of Redis.

`compose.yaml`, `Dockerfile` and `nginx.conf` say the same in languages of their own; a test compares them with this.
"""

from __future__ import annotations

from typing import Final

SITE: Final = "examples.several_hosts.app:make_app"
FRONT: Final = "examples.several_hosts.front:make_app"
HOSTS: Final = ("host_a", "host_b")
PORT: Final = 8000
"""Where a host listens in its container."""
SETTINGS: Final = ("HOST_NAME", "REDIS_URL", "SITE_SECRET", "ADMIN_TOKEN", "TRUSTED_PROXIES")
"""What a host has to be told by its environment."""
REDIS_OPTIONS: Final = ("--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction")
"""Counts are worth no disk here; where bans have to outlive a Redis that dies, let it append to a file."""


def serving(app: str, address: str, port: int) -> list[str]:
    """Return the command that serves an application, in words.

    The middleware itself decides whose `X-Forwarded-For` it believes, so uvicorn has to leave the peer as it is.
    """
    return [
        *("uvicorn", "--factory", app, "--host", address, "--port", str(port)),
        *("--no-proxy-headers", "--no-access-log", "--timeout-graceful-shutdown", "5"),
    ]
