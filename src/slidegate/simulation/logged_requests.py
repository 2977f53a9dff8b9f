"""The requests of an access log as ASGI sees them."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from ..core.memo import remember
from ..logs import AccessRecord
from ..web.client_ip import client_ip

_MEMO: Final = 4_096
_TARGETS: dict[str, tuple[str, bytes, bytes]] = {}


def scope_of(record: AccessRecord) -> dict[str, Any] | None:
    """Return the ASGI scope of a logged request; None where it was no HTTP request, which no server passes on.

    Header fields are those that the log holds.
    """
    if not record.method:
        return None
    path, raw_path, query = _TARGETS.get(record.path) or remember(_TARGETS, record.path, _split(record.path), _MEMO)
    headers = [(name.encode("latin-1", "replace"), value.encode(errors="replace")) for name, value in record.headers]
    for name, value in ((b"host", record.host), (b"user-agent", record.user_agent), (b"referer", record.referer)):
        if value is not None:
            headers.append((name, value.encode(errors="replace")))
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": record.method,
        "path": path,
        "raw_path": raw_path,
        "query_string": query,
        "root_path": "",
        "headers": headers,
        "client": (record.client, 0),
        "server": (record.host or "localhost", 80),
    }


def _split(target: str) -> tuple[str, bytes, bytes]:
    """Return path, raw path and query of a request's target."""
    if not target.startswith("/"):
        try:
            parts = urlsplit(target)
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        except ValueError:
            pass
        if not target.startswith("/"):
            target = f"/{target}"
    raw, _, query = target.partition("?")
    return unquote(raw), raw.encode(errors="replace"), query.encode(errors="replace")


class Clients:
    """Names the client of each request: as a gate counts addresses, an IPv6 client by its /64.

    Args:
        header: The header field whose value tells clients apart instead of the address; requests without it are told
            apart by address. Values are shown as digests, because they may be secrets.
    """

    def __init__(self, header: str | None = None) -> None:
        self._header = header
        self._client = client_ip()
        self._names: dict[str, str] = {}

    def name(self, record: AccessRecord) -> str:
        """Return the name of the client of a request."""
        if self._header is not None and (value := record.header(self._header)) is not None:
            digest = blake2b(value.encode(errors="replace"), digest_size=4).hexdigest()
            return f"header:{self._header}#{digest}"
        name = self._names.get(record.client)
        if name is None:
            name = self._names[record.client] = self._client.locate({"client": (record.client, 0), "headers": []})[0]
        return name
