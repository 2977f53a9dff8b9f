"""Tools of MCP servers are counted by header fields, and a field that lies, is repeated or left out buys nothing."""

from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client
from mcp.server import MCPServer
from mcp.shared.exceptions import MCPError

from slidegate import Limiter, RateLimitMiddleware, Rule, mcp_tool

from ..asgi import scope_of
from .test_servers import serving, with_uvicorn

NOW = "2026-07-28"
TOOLS = mcp_tool("search", "export", "tröt", validated=True)
SHARED, OLDER = "mcp_tool:*", "mcp_tool:*older"


def encoded(name: str) -> str:
    return f"=?base64?{b64encode(name.encode()).decode()}?="


def fields(name: str = "search") -> list[tuple[bytes, bytes]]:
    """Return the header fields of a call."""
    given = {"mcp-protocol-version": NOW, "mcp-method": "tools/call", "mcp-name": name}
    return [(field.encode(), value.encode()) for field, value in given.items()]


def key_of(headers: list[tuple[bytes, bytes]]) -> str:
    return TOOLS.find(scope_of("/mcp", "POST", headers=headers), Limiter(), "client")


VALUES = st.sampled_from([NOW.encode(), b"tools/call", b"search", b"=?base64?ZXhwb3J0?="]) | st.binary(max_size=80)
MORE = st.lists(st.tuples(st.sampled_from([*(name for name, _ in fields()), b"x-other"]), VALUES), max_size=5)


@given(st.sampled_from([[], fields()]), MORE)
def test_whatever_fields_a_client_sends_there_are_no_more_keys_than_tools(
    valid: list[tuple[bytes, bytes]], more: list[tuple[bytes, bytes]]
) -> None:
    headers = valid + more
    found = key_of(headers)
    assert found in {SHARED, OLDER, *(f"mcp_tool:{name}" for name in TOOLS.names)}
    named = [name for name, _ in headers]
    assert found in (SHARED, OLDER) or all(named.count(field) == 1 for field, _ in fields())
    assert (found == OLDER) <= (named.count(b"mcp-protocol-version") <= 1)


@pytest.mark.parametrize("without", [name for name, _ in fields()])
@pytest.mark.parametrize("instead", [[], [b""], [b"a", b"a"]])
def test_a_call_with_a_field_missing_empty_or_repeated_may_be_one_of_any_tool(
    without: bytes, instead: list[bytes]
) -> None:
    headers = [*[one for one in fields() if one[0] != without], *[(without, value) for value in instead]]
    scope = scope_of("/mcp", "POST", headers=headers)
    for name in TOOLS.names:
        assert TOOLS.is_in(name).is_true(scope, "client") is None


@asynccontextmanager
async def served(*rules: Rule) -> AsyncIterator[str]:
    """Serve a real MCP server behind some rules; yields its URL."""
    server = MCPServer("tools")
    server.tool()(search)
    server.tool()(export)
    app = server.streamable_http_app(json_response=True)
    app.add_middleware(RateLimitMiddleware, rules=rules)
    with serving(with_uvicorn, app) as host:
        yield f"http://{host}/mcp"


def search(text: str) -> str:
    return f"found {text}"


def export(rows: int) -> str:
    return f"{rows} rows"


def is_discovery(request: Any) -> bool:
    return request.headers.get("mcp-method") in ("server/discover", "tools/list")


async def test_each_tool_of_a_real_server_has_its_own_limit() -> None:
    tools = mcp_tool("search", "export", validated=True)
    rules = Rule("/mcp", exempt=True, when=is_discovery), Rule("/mcp", "2/hour", key=tools, name="tools")
    async with served(*rules) as url, Client(url) as client:
        for _ in range(3):
            await client.list_tools()
        for _ in range(2):
            assert not (await client.call_tool("search", {"text": "a"})).is_error
            assert not (await client.call_tool("export", {"rows": 1})).is_error
        for name, arguments in (("search", {"text": "a"}), ("export", {"rows": 1})):
            with pytest.raises(MCPError):
                await client.call_tool(name, arguments)
        await client.list_tools()


async def test_a_lying_call_is_rejected_by_the_server_and_counted_under_the_tool_that_it_names() -> None:
    tools = mcp_tool("search", "export", validated=True)
    lie = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {
            "name": "export",
            "arguments": {"rows": 1},
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": NOW,
                "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {},
            },
        },
    }
    truth = lie | {"params": {**lie["params"], "name": "search", "arguments": {"text": "a"}}}  # type: ignore[dict-item]
    sent = {"accept": "application/json, text/event-stream", "mcp-protocol-version": NOW, "mcp-method": "tools/call"}
    async with served(Rule("/mcp", "2/hour", key=tools)) as url, httpx.AsyncClient() as client:

        async def post(body: object, name: str) -> int:
            return (await client.post(url, json=body, headers=sent | {"mcp-name": name})).status_code

        assert await post(truth, encoded("search")) == 200
        assert await post(lie, "search") == 400
        assert await post(lie, encoded("search")) == 429
        refused = await client.post(url, json=truth, headers=sent | {"mcp-name": "search"})
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) > 3_500
        assert await post(lie | {"params": {}}, "export") == 400
