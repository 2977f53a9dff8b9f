"""What tools say about a ban is what a middleware does: where it holds, and what makes it hold on every request."""

import ipaddress
import re
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from slidegate import BanPolicy, ConfigurationError, Limiter, RateLimitMiddleware, Rule, cookie, header, query, user
from slidegate.ops import rows
from slidegate.ops.kinds import ADDRESS, Subject, kind_of
from slidegate.ops.rows import check_key, key_of, row_of_ban, scope_of

from ..asgi import PEER, hello, statuses


class Case(NamedTuple):
    """A key as an operator types it, with its value; a request of its client; and a key of rules that reads it."""

    key: str
    value: str | None
    sent: dict[str, Any]
    reads: Any = None


def tenant(request: Any) -> str:
    return f"tenant:{request.headers.get('x-tenant', 'none')}"


def account(request: Any) -> str:
    return "account/" * 20


CASES = [
    Case(PEER, None, {}),
    Case("203.0.113.0/24", None, {}),
    Case("2001:db8::7", None, {"client": ("2001:db8::7", 1)}),
    Case("2001:db8::/48", None, {"client": ("2001:db8::7", 1)}),
    Case("peer:testclient", None, {"client": ("testclient", 1)}),
    Case("header:X-API-Key", "k123", {"headers": {"x-api-key": "k123"}}, header("X-API-Key")),
    Case("cookie:device", "d7", {"headers": {"cookie": "device=d7"}}, cookie("device")),
    Case("query:token", "t1", {"query_string": b"token=t1"}, query("token")),
    Case("user:42", None, {"user": "42"}, user),
    Case("user:42", None, {}, lambda request: "user:42"),
    Case("tenant:acme", None, {"headers": {"x-tenant": "acme"}}, tenant),
    Case("account/" * 20, None, {}, account),
]
PATHS = ("/api", "/other", "/health")
EVERYWHERE = [403, 403, 403]


async def answered(case: Case, rules: list[Rule], **options: Any) -> list[int]:
    """Return the statuses of the paths for the client of a case, who is banned."""
    limiter = Limiter()
    row = row_of_ban(await limiter.ban(key_of(case.key, case.value), "1h"))
    assert (row["holds"], row["remedy"]) == scope_of(row["key"])
    rules = [*rules, Rule("/health", exempt=True), Rule("*", "100/minute", name="all")]
    app = RateLimitMiddleware(hello, limiter=limiter, rules=rules, **options)
    return [status for path in PATHS for status in await statuses(app, 1, path, **case.sent)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.key[:20])
async def test_a_ban_holds_where_tools_say_and_on_every_request_with_what_they_advise(case: Case) -> None:
    limiter = Limiter()
    where, remedy = scope_of(limiter.key_for(key_of(case.key, case.value)))
    if case.reads is None:
        assert (where, remedy) == ("on every request", "")
        assert await answered(case, []) == EVERYWHERE
        return
    assert where.startswith("where a rule")
    assert await answered(case, []) == [200, 200, 200]
    assert await answered(case, [Rule("/api", "100/minute", key=case.reads, name="api")]) == [403, 200, 200]
    known = {"BanPolicy": BanPolicy, "Rule": Rule, "header": header, "cookie": cookie, "query": query, "user": user}
    lines = re.findall(r"(?:BanPolicy|Rule)\(.*?\)+(?=[ ,])", remedy)
    made = [eval(line, known | {"your_function": case.reads}) for line in lines]
    policies, rules = [[one for one in made if isinstance(one, kind)] for kind in (BanPolicy, Rule)]
    assert bool(policies) == ("a rule or a policy counts" in where)
    assert bool(rules) == ("a function" in where)
    if not callable(case.reads):
        assert await answered(case, [], bans=policies) == EVERYWHERE
    for rule in rules:
        assert await answered(case, [rule]) == EVERYWHERE


SPELLED = [
    "header:X-API-Key",
    "Header:x-api-key",
    "header:X-A-Name-Of-Many-Letters-That-Is-Cut",
    "Cookie:device",
    "query:token",
]


@pytest.mark.parametrize("typed", SPELLED)
async def test_a_key_with_a_digest_is_that_of_the_value_however_its_name_is_spelled(typed: str) -> None:
    """An error about a key without its value advises to write the digest behind the key as it was typed."""
    limiter = Limiter()
    shown = limiter.key_for(key_of(typed, "k123"))
    with pytest.raises(ConfigurationError, match=f'for example "{typed}#1f3a..."'):
        key_of(typed)
    for spelled in (typed, shown.partition("#")[0]):
        assert limiter.key_for(key_of(f"{spelled}#{shown.partition('#')[2]}")) == shown


OF_THE_LIBRARY = {"header", "cookie", "query", "path", "asn", "peer"}
"""Kinds with a meaning of their own: values that clients send are digests, and some are read on every request."""
KINDS = st.from_regex("[A-Za-z][A-Za-z0-9_-]{0,9}", fullmatch=True) | st.text("abcdefABCDEF", min_size=1, max_size=5)
VALUES = st.from_regex("[0-9a-fA-F:./%]{1,12}", fullmatch=True) | st.text(min_size=1, max_size=70)


def is_address_or_network(text: str) -> bool:
    """Return whether Python parses a text; of an IPv6 zone any text is dropped."""
    try:
        ipaddress.ip_network(text.partition("%")[0], strict=False)
    except ValueError:
        return False
    return True


@given(KINDS.filter(lambda kind: kind.lower() not in OF_THE_LIBRARY), VALUES)
@example("feed", "7")
@example("ad", "5")
@example("cafe", "1")
@example("e", ":")
async def test_a_kind_and_a_value_that_are_no_address_are_a_key_whatever_they_look_like(kind: str, value: str) -> None:
    typed = f"{kind}:{value}"
    # What reads like a line of a header may show its secret value, and is refused.
    assume(not value[0].isspace() and not is_address_or_network(typed))
    limiter = Limiter()
    check_key(typed)
    await limiter.ban(key_of(typed), "1h")
    app = RateLimitMiddleware(hello, limiter=limiter, rules=[Rule("*", "100/minute", key=lambda request: typed)])
    assert await statuses(app, 1) == [403]
    key, ban = limiter.key_for(typed), await limiter.banned(typed)
    assert ban is not None
    assert ban.key == key
    assert [one.key async for one in limiter.bans()] == [key]
    assert kind_of(key) != ADDRESS
    assert not Subject(limiter, typed).is_address
    assert scope_of(key) != rows.EVERYWHERE
    copy = Limiter()
    assert await copy.import_bans([line async for line in limiter.export_bans()]) == 1
    assert await copy.banned(typed)
    assert await limiter.unban(typed)
