"""Tools of MCP servers: a key and conditions based on header fields, so that no body is read.

Since revision 2026-07-28, clients of the Model Context Protocol send the JSON-RPC method of each POST in
``Mcp-Method`` and the name of the tool in ``Mcp-Name`` (SEP-2243). Clients can write anything there. The fields can be
trusted only if the server behind the limiter rejects requests whose body differs, and servers do so only for requests
with such a revision in ``MCP-Protocol-Version``. Clients of older revisions send neither field, so they are counted
separately.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Collection
from typing import Final

from starlette.types import Scope

from ..core.errors import ConfigurationError, closest, quoted
from ..core.options import checked_value
from ..limiter import Limiter
from ..web.keys import Key, KeyCondition

_FIRST_VALIDATED: Final = b"2026-07-28"
_REVISION: Final = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_ENCODED: Final = re.compile(rb"=\?base64\?(.*)\?=")
_FIELDS: Final = (b"mcp-protocol-version", b"mcp-method", b"mcp-name")
_OTHERS: Final = "*"
"""Stands for the tool of all requests that are not known to call one of the named tools."""
_OLDER: Final = "*older"
"""Stands for the tool of requests whose clients do not name tools in header fields."""


class McpTool(Key):
    """A key by the tool that a request calls; created by `mcp_tool`.

    Attributes:
        names: The tools that are counted separately.
    """

    shared = True

    def __init__(self, names: Collection[str]) -> None:
        self.names = frozenset(names)
        self.identity = f"mcp_tool:{','.join(sorted(self.names))}"

    def read(self, scope: Scope, limiter: Limiter, client_key: str) -> str:
        """Return the key of a request: of a named tool, of all clients of older revisions, or of all others."""
        tool = _tool_of(scope)
        if tool != _OLDER and tool not in self.names:
            tool = _OTHERS
        return limiter.key_for(f"mcp_tool:{tool}")

    def is_in(self, *names: str) -> KeyCondition:
        """Return a condition for `Rule(when=...)`: the request calls one of these tools.

        If the tool of a POST is unknown, limits and blocks apply and exemptions do not, so that omitting a header field
        does not bypass a limit.

        Args:
            names: Some of the tools of this key.

        Raises:
            ConfigurationError: There are no names, or one is not among the tools of this key.
        """
        for name in names or ("",):
            if not isinstance(name, str) or name not in self.names:
                raise ConfigurationError(
                    f"expected tools that mcp_tool names, such as {quoted(min(self.names))}, "
                    f"not {quoted(name)}{closest(name, self.names)}",
                    "is_in",
                )
        tools = frozenset(names)

        def is_true(scope: Scope, client_key: str) -> bool | None:
            tool = _tool_of(scope)
            if tool is None or tool == _OLDER:
                return None
            return tool in tools

        return KeyCondition(f"{self.identity} {sorted(tools)}", is_true)

    def is_older(self) -> KeyCondition:
        """Return a condition for `Rule(when=...)`: the client speaks a revision that names no tools in header fields.

        ``Rule("/mcp", "600/hour", when=tools.is_older(), final=True)`` gives those clients a limit of their own, for
        all methods and tools together. Any client can claim an older revision, so the limit must suit every tool.
        """

        def is_true(scope: Scope, client_key: str) -> bool | None:
            tool = _tool_of(scope)
            if tool is None:
                return None
            return tool == _OLDER

        return KeyCondition(f"{self.identity} older", is_true)


def _tool_of(scope: Scope) -> str | None:
    """Return the tool that a request calls.

    Returns:
        The tool; empty if it calls none, `_OLDER` if its client names none in header fields, None if it is unknown.
    """
    if scope["type"] != "http" or str(scope.get("method")).upper() != "POST":
        return ""
    # Some servers write a bytearray, which has no hash.
    fields = [(bytes(name), bytes(value)) for name, value in scope["headers"] if name in _FIELDS]
    revision, method, tool = (dict(fields).get(name) for name in _FIELDS)
    if revision is None:  # as in the first request of such a client, `initialize`
        return _OLDER
    if len(fields) > len(dict(fields)) or not _REVISION.fullmatch(revision):
        return None
    if revision < _FIRST_VALIDATED:
        return _OLDER
    if not method or (method == b"tools/call" and not tool):
        return None
    name = _decoded(tool or b"")
    if name is not None and method != b"tools/call":
        return ""
    return name


def _decoded(value: bytes) -> str | None:
    """Return the text of a value, with ``=?base64?...?=`` decoded; None if the protocol does not allow the value."""
    encoded = _ENCODED.fullmatch(value)
    try:
        if encoded is None:
            return value.decode("ascii")
        text = b64decode(encoded[1], validate=True)
        if b64encode(text) != encoded[1]:  # another spelling of the same text
            return None
        return text.decode()
    except ValueError:
        return None


def mcp_tool(*names: str, validated: bool = False) -> McpTool:
    """Count each tool of an MCP server: ``combine(user, mcp_tool("search", "export", validated=True))``.

    Requests that call one of the tools, by ``Mcp-Method: tools/call`` and ``Mcp-Name``, are counted per tool. Those of
    clients that speak an older revision of the protocol share one bucket. All others share another: those of other
    tools and methods, and those whose fields are missing, repeated or malformed. An invented name therefore gains a
    client nothing. The methods `is_in` and `is_older` return conditions:
    ``Rule("/mcp", "2/hour", when=tools.is_in("export"))``.

    Args:
        names: The tools.
        validated: Confirms that the server rejects requests whose header fields and body differ, as the Python SDK does
            since version 2. It must be True: a client could otherwise name one tool and call another.

    Raises:
        ConfigurationError: There are no names, one cannot be the name of a tool, or `validated` is not True.
    """
    for name in names or ("",):
        if not isinstance(name, str) or not name.isprintable() or not name or name[0] == "*":
            raise ConfigurationError(
                f'expected names of tools, for example mcp_tool("search", validated=True), not {quoted(name)}',
                "mcp_tool",
            )
    if not checked_value("validated", validated):
        raise ConfigurationError(
            "expected True: if the server does not reject requests whose header fields and body differ, a client can "
            "name one tool and call another; if yours does, as the Python SDK since version 2, "
            f"write mcp_tool({', '.join(map(quoted, names))}, validated=True)",
            "validated",
        )
    return McpTool(names)
