"""A rule of several paths is one bucket over all of them."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from slidegate import (
    ConfigurationError,
    RateLimitMiddleware,
    Rule,
    combine,
    everyone,
    header,
    path_param,
)

from ...asgi import call, hello, statuses

PATHS = ["/login", "/api/login", "/v2/{rest:path}"]


async def test_the_paths_of_a_rule_share_its_count() -> None:
    app = RateLimitMiddleware(hello, rules=[Rule(PATHS, "3/minute")])
    assert [(await call(app, path)).status for path in ("/login", "/api/login", "/v2/a/b")] == [200] * 3
    assert [(await call(app, path)).status for path in ("/login", "/api/login", "/v2/c")] == [429] * 3
    assert await statuses(app, 5, "/elsewhere") == [200] * 5


async def test_an_exemption_of_several_paths_exempts_each_and_no_more() -> None:
    app = RateLimitMiddleware(hello, rules=[Rule(["/health", "/ready"], exempt=True), Rule("*", "1/minute")])
    assert [await statuses(app, 3, path) for path in ("/health", "/ready")] == [[200] * 3] * 2
    assert await statuses(app, 2, "/health\n") == [200, 429]


def test_the_identity_is_that_of_the_paths_in_any_order() -> None:
    assert len({Rule(order, "1/minute").identity for order in permutations(PATHS)}) == 1
    others = [PATHS[:2], PATHS[:1], PATHS[0], " ".join(PATHS[:2])]
    identities = {Rule(paths, "1/minute").identity for paths in others}
    assert len(identities) == 3, "a list of one path is that path"
    assert Rule(PATHS, "1/minute").identity not in identities


async def test_one_parameter_of_all_paths_is_one_key() -> None:
    rule = Rule(["/t/{tenant:int}/a", "/t/{tenant:int}/b/{rest:path}"], "2/minute", key=path_param("tenant"))
    app = RateLimitMiddleware(hello, rules=[rule])
    asked = ["/t/1/a", "/t/01/b/x", "/t/1/a", "/t/2/b/y", "/t/2/a", "/t/002/a"]
    assert [(await call(app, path)).status for path in asked] == [200, 200, 429, 200, 200, 429]


@pytest.mark.parametrize("key", [path_param("tenant"), combine(header("X-Key"), path_param("tenant"))])
@pytest.mark.parametrize("paths", [["/t/{tenant}", "/u/{user}"], ["/u", "/t/{tenant}"], "*"])
def test_a_parameter_that_one_path_lacks_is_an_error(key: Any, paths: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"path_param: '(/u|/u/\{user\}|\*)' has no parameter 'tenant'"):
        Rule(paths, "1/minute", key=key)


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([], r'expected paths such as \["/login", "/token"\], not an empty list'),
        (["/a", "*"], '"\\*" means every path; write it alone'),
        (["/a", "/b", "/a"], "'/a' stands twice in"),
        (["/a", "b"], "expected .* not 'b'"),
        (["/a", 7], "expected .* not 7"),
        (["/a", "/b/*"], "'/b/\\*' is not in Starlette's syntax"),
        (7, "expected .* not 7"),
        (b"/a", "expected .* not b'/a'"),
        (None, "expected .* not None"),
    ],
)
def test_paths_that_cannot_be_used_are_errors(paths: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"path: {message}"):
        Rule(paths, "1/minute")


TABLE = '[[rules]]\npath = ["/login", "/token"]\nlimits = "2/minute"\n'


def test_hidden_rules_are_found_path_by_path() -> None:
    final = Rule(["/a", "/files/{rest:path}", "/u/{name}"], "1/minute", final=True)
    hidden = [Rule(["/a", "/files/x/{id}"], "1/s"), Rule(["/u/{other}"], "1/s"), Rule("/files/y", "1/s")]
    hidden += [Rule(["/u/{other:int}", "/a"], "1/s")]
    open_to = [Rule(["/a", "/b"], "1/s", key=everyone), Rule("*", "1/s")]
    for later in hidden + open_to:
        found = [finding.code for finding in RateLimitMiddleware(hello, rules=[final, later]).findings]
        assert found == ["SG104"] * (later in hidden)
    (found,) = RateLimitMiddleware(hello, rules=[Rule("*", "1/s", final=True), final]).findings
    assert found.code == "SG104"
