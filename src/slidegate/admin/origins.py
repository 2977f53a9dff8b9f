"""The place that a request comes from: its Host, its Origin, and the word of a browser about the page that sent it.

A page elsewhere can make a browser send a request here, with the cookies of this place (cross-site request forgery).
And a page can have its own name lead to an address of ours (DNS rebinding): then the browser takes us for that page.
Against the first an Origin must be that of the Host; against the second the Host must be one of the names that the
operator has listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from starlette.types import Scope

from ..core.errors import ConfigurationError, quoted

MOST_HOSTS: Final = 64
LONGEST_HOST: Final = 261
"""A name of 255 characters, a colon and a port."""
_HOST: Final = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9_.-]{1,255})(?::(?P<port>[0-9]{1,5}))?")
_PORTS: Final = {"http": "80", "https": "443"}
_OUTSIDE: Final = (b"cross-site", b"same-site")


class Places:
    """The places at which a tool may be asked.

    Args:
        what: The name of the tool, for error messages.
        hosts: Names, with a port or for any port; empty for any name, and then an Origin must equal the Host.

    Raises:
        ConfigurationError: A host cannot be one.
    """

    def __init__(self, what: str, hosts: Iterable[str]) -> None:
        example = 'for example hosts=["ops.example.org", "127.0.0.1:8000"]'
        if isinstance(hosts, (str, bytes)) or not isinstance(hosts, Iterable):
            raise ConfigurationError(f"{what}: hosts: expected a list, {example}, not {quoted(hosts)}")
        self._hosts: set[tuple[str, str]] = set()
        for host in hosts:
            split = split_host(host) if isinstance(host, str) else None
            if split is None:
                raise ConfigurationError(
                    f"{what}: hosts: expected names without a scheme, {example}, not {quoted(host)}"
                )
            self._hosts.add(split)
        if len(self._hosts) > MOST_HOSTS:
            raise ConfigurationError(f"{what}: hosts: expected at most {MOST_HOSTS}, not {len(self._hosts)}")

    def host(self, scope: Scope) -> tuple[str, str] | None:
        """Return the name and the port that a request asks for; None if the request must not be answered."""
        values = field_values(scope, b"host")
        split = split_host(values[0].decode("latin-1")) if len(values) == 1 else None
        if split is None or not (not self._hosts or self._lists(split, _PORTS.get(_scheme(scope), ""))):
            return None
        return split

    def foreign(self, scope: Scope, host: tuple[str, str], *, page: bool) -> bool:
        """Tell whether a request says that it comes from a page of another place.

        Args:
            scope: Its ASGI scope.
            host: The place that it asks for, as `host` returns it.
            page: Whether it is about a public page, to which links elsewhere may lead.
        """
        if any(value in _OUTSIDE for value in field_values(scope, b"sec-fetch-site")):
            followed = scope["method"] in ("GET", "HEAD") and field_values(scope, b"sec-fetch-mode") == [b"navigate"]
            if not (page and followed):
                return True
        origins = field_values(scope, b"origin")
        return any(not self._own(origin.decode("latin-1"), scope, host) for origin in origins)

    def _own(self, origin: str, scope: Scope, host: tuple[str, str]) -> bool:
        """Tell whether an Origin is the place that the request asks for, or one of the listed hosts."""
        scheme, _, rest = origin.partition("://")
        split = split_host(rest)
        default = _PORTS.get(scheme)
        # Behind a proxy that ends TLS a server sees http where the browser says https, but never the other way round.
        if split is None or default is None or (_scheme(scope) == "https" and scheme != "https"):
            return False
        if self._hosts:
            return self._lists(split, default)
        return split[0] == host[0] and (split[1] or default) == (host[1] or default)

    def _lists(self, split: tuple[str, str], default: str) -> bool:
        name, port = split
        return (name, "") in self._hosts or (name, port or default) in self._hosts


def split_host(text: str) -> tuple[str, str] | None:
    """Return the name, in lower case without a dot at its end, and the port of a host; None if it cannot be one."""
    found = _HOST.fullmatch(text) if len(text) <= LONGEST_HOST else None
    if found is None:
        return None
    name = found["name"].lower().removesuffix(".")
    return (name, (found["port"] or "").lstrip("0")) if name else None


def field_values(scope: Scope, name: bytes) -> Sequence[bytes]:
    """Return the values of every header field of a name, in their order."""
    return [value for field, value in scope["headers"] if field == name]


def says_https(scope: Scope) -> bool:
    """Tell whether the browser speaks https, as far as anybody says so."""
    return _scheme(scope) == "https" or any(value.startswith(b"https://") for value in field_values(scope, b"origin"))


def _scheme(scope: Scope) -> str:
    scheme: str = scope.get("scheme", "http")
    return scheme
