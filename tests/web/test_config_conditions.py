"""Tools and networks in the configuration file: the same keys, conditions and bans as in code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slidegate import (
    ConfigurationError,
    Limiter,
    MemoryStore,
    RateLimitMiddleware,
    Rule,
    combine,
    header,
    mcp_tool,
    network,
)
from slidegate.web.keys import parts_of
from slidegate.web.networks import Network, NetworkFile

from ..asgi import call, hello, statuses
from .middlewares import FollowedFiles
from .network_files import ASN, written

COUNTRY = {"203.0.0.0/16": {"country": {"iso_code": "BE"}}, "198.51.0.0/16": {"country": {"iso_code": "NL"}}}
BOTH = {network: {**record, "country": {"iso_code": "US"}} for network, record in ASN.items()}
TOOLS = """
[[rules]]
path = "/mcp"
exempt = true
when = { mcp_tool = ["search", "export"], validated = true, is_in = ["search"] }

[[rules]]
path = "/mcp"
limits = "120/minute"
key = { combine = [{ header = "Authorization" }, { mcp_tool = ["search", "export"], validated = true }] }

[[rules]]
path = "/mcp"
limits = "2/hour"
name = "export"
key = { header = "Authorization" }
when = { mcp_tool = ["search", "export"], validated = true, is_in = ["export"] }
"""
NETWORKS = """
[[rules]]
path = "/checkout"
block = true
status = 451
when = { network = "country.mmdb", is_in = ["nl", "BE"] }

[[rules]]
path = "*"
limits = "3/minute"
key = { network = "asn.mmdb" }
when = { network = "asn.mmdb", is_in = [132203, 64500] }

[[rules]]
path = "/by_country"
limits = "2/minute"
key = { network = "both.mmdb", by = "country" }
"""


@pytest.fixture
def files(tmp_path: Path) -> FollowedFiles:
    for name, records in (("asn", ASN), ("country", COUNTRY), ("both", BOTH)):
        written(tmp_path / f"{name}.mmdb", records)
    return FollowedFiles(tmp_path)


def from_file(files: FollowedFiles, text: str, **code: Any) -> Any:
    path = files.write("slidegate.toml", text)
    return RateLimitMiddleware.from_file(hello, path, observers=[files.heard], clock=files.seconds, **code)


def identities(rules: Any) -> list[str]:
    return [rule.identity for rule in rules]


def opened(middleware: RateLimitMiddleware) -> set[NetworkFile]:
    """Return the files by which a middleware counts."""
    keys = [part for rule in middleware.rules for part in parts_of(rule.key)]
    return {key.file for key in keys if isinstance(key, Network)}


async def test_tools_count_and_are_asked_for_as_in_code(files: FollowedFiles) -> None:
    tools = mcp_tool("search", "export", validated=True)
    rules = [
        Rule("/mcp", exempt=True, when=tools.is_in("search")),
        Rule("/mcp", "120/minute", key=combine(header("Authorization"), tools)),
        Rule("/mcp", "2/hour", key=header("Authorization"), when=tools.is_in("export"), name="export"),
    ]
    app = from_file(files, TOOLS)
    assert identities(app.app.rules) == identities(rules)
    sent = {"Authorization": "Bearer a", "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call"}
    export, search = {**sent, "Mcp-Name": "export"}, {**sent, "Mcp-Name": "search"}
    for one in (app, RateLimitMiddleware(hello, rules=rules)):
        assert await statuses(one, 3, "/mcp", method="POST", headers=export) == [200, 200, 429]
        assert await statuses(one, 3, "/mcp", method="POST", headers=search) == [200] * 3
        assert await statuses(one, 1, "/mcp", method="POST", headers={**sent, "Mcp-Method": "tools/list"}) == [200]
    assert app.findings == []


async def test_networks_count_and_are_asked_for_as_in_code(files: FollowedFiles) -> None:
    asn, country, both = (network(files.directory / f"{name}.mmdb") for name in ("asn", "country", "both"))
    by_country = network(files.directory / "both.mmdb", by="country")
    assert (both.by, by_country.by) == ("asn", "country")
    rules = [
        Rule("/checkout", block=True, status=451, when=country.is_in("NL", "BE")),
        Rule("*", "3/minute", key=asn, when=asn.is_in(132203, 64500)),
        Rule("/by_country", "2/minute", key=by_country),
    ]
    app = from_file(files, NETWORKS)
    assert identities(app.app.rules) == identities(rules)
    for one in (app, RateLimitMiddleware(hello, rules=rules)):
        shopping = [(await call(one, "/checkout", client=(peer, 1))).status for peer in ("198.51.100.1", "8.8.8.8")]
        assert shopping == [451, 200]
        peers = [("43.128.0.1", 1), ("101.32.0.1", 1)] * 2
        assert [(await call(one, client=peer)).status for peer in peers] == [200, 200, 200, 429]
        elsewhere = [("8.8.8.8", 1), ("9.9.9.9", 1)] * 2
        assert [(await call(one, "/by_country", client=peer)).status for peer in elsewhere] == [200, 200, 429, 429]


async def test_operators_are_banned_by_the_files_that_the_configuration_names(files: FollowedFiles) -> None:
    app = from_file(files, 'networks = "asn.mmdb"\nlimits = "9/minute"\n')
    await app.limiter.ban("asn:132203", "1d")
    assert [(await call(app, client=(peer, 1))).status for peer in ("43.128.0.1", "203.0.113.1")] == [403, 200]
    written(files.directory / "asn.mmdb", {"203.0.0.0/16": ASN["43.128.0.0/14"]})
    await files.visit(app)
    assert [(await call(app, client=(peer, 1))).status for peer in ("43.128.0.1", "203.0.113.1")] == [200, 403]
    assert files.heard.kinds[-1] == "list_reloaded"


async def test_a_file_is_opened_once_for_all_rules_and_another_one_for_bans_needs_a_restart(
    files: FollowedFiles,
) -> None:
    text = f'networks = ["asn.mmdb", "country.mmdb"]\n{NETWORKS}'
    app = from_file(files, text)
    asn, country = app.limiter.engine.networks
    assert len(opened(app.app)) == 2
    files.write("slidegate.toml", text.replace("3/minute", "4/minute"))
    await files.visit(app)
    assert files.heard.kinds[-1] == "config_reloaded"
    assert app.app.limiter.engine.networks == (asn, country)
    for changed in (text.replace(', "country.mmdb"]', "]"), text.partition("\n")[2]):
        files.write("slidegate.toml", changed)
        await files.visit(app)
        assert files.heard.kinds[-1] == "config_rejected"
        said = "slidegate.toml: networks: it cannot change while the application runs; restart the application"
        assert said in files.heard.events[-1].message


async def test_a_file_that_cannot_be_read_leaves_the_rules_at_work_until_it_can(files: FollowedFiles) -> None:
    plain = '[[rules]]\npath = "*"\nlimits = "1/minute"\n'
    app = from_file(files, plain)
    files.write("slidegate.toml", f'{plain}key = {{ network = "later.mmdb" }}\n')
    await files.visit(app)
    assert files.heard.kinds == ["config_rejected"]
    assert "rules[0].key.network: cannot read" in files.heard.events[0].message
    written(files.directory / "later.mmdb", ASN)
    await files.visit(app)
    assert files.heard.kinds == ["config_rejected", "config_reloaded"]
    assert [(await call(app, client=(peer, 1))).status for peer in ("43.128.0.1", "101.32.0.1")] == [200, 429]


async def test_a_limiter_in_code_goes_with_networks_in_rules(files: FollowedFiles) -> None:
    limiter = Limiter(MemoryStore())
    path = files.write("slidegate.toml", f'networks = "asn.mmdb"{NETWORKS}')
    with pytest.raises(ConfigurationError, match="networks: the limiter given in code has its own; remove n"):
        RateLimitMiddleware.from_file(hello, path, limiter=limiter)
    files.write("slidegate.toml", NETWORKS)
    app = RateLimitMiddleware.from_file(hello, path, limiter=limiter)
    assert (await call(app, "/checkout", client=("203.0.113.1", 1))).status == 451
