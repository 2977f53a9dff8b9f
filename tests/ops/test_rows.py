"""Keys as operators type them."""

import ipaddress

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from slidegate import ConfigurationError, Limiter, RateLimitMiddleware, Rule
from slidegate.ops.kinds import ADDRESS, Subject, kind_of
from slidegate.ops.readers import where_banned
from slidegate.ops.rows import check_key, key_of

from ..asgi import hello, statuses

SPELLED = ["header:X-API-Key", "Header:x-api-key", "Cookie:device", "query:t", "header:X-A-Name-Of-Many-Letters-Cut"]


@pytest.mark.parametrize("typed", SPELLED)
async def test_a_key_with_a_digest_is_that_of_the_value_however_its_name_is_spelled(typed: str) -> None:
    """An error about a key without its value advises to write the digest behind the key as it was typed."""
    limiter = Limiter()
    shown = limiter.key_for(key_of(typed, "k123"))
    with pytest.raises(ConfigurationError, match=f'for example "{typed}#1f3a..."'):
        key_of(typed)
    for spelled in (typed, shown.partition("#")[0]):
        assert limiter.key_for(key_of(f"{spelled}#{shown.partition('#')[2]}")) == shown


NO_KEYS = ["203.0.113.O", "example.com", "ann", "300.1.1.1", "192.0.2.0/33", ":x", "user:", ""]


@pytest.mark.parametrize("typed", NO_KEYS)
def test_what_is_no_address_and_has_no_kind_is_no_key(typed: str) -> None:
    with pytest.raises(ConfigurationError, match="expected an address, a network or kind:value"):
        check_key(typed)


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
    assert Subject(limiter, typed).addresses is None
    assert where_banned(await limiter.published(), key).startswith("it holds where ")
    copy = Limiter()
    assert await copy.import_bans([line async for line in limiter.export_bans()]) == 1
    assert await copy.banned(typed)
    assert await limiter.unban(typed)
