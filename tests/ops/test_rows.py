"""Keys as operators type them."""

import ipaddress
import re

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from slidegate import ConfigurationError, Limiter, RateLimitMiddleware, Rule
from slidegate.ops.kinds import ADDRESS, Subject, kind_of
from slidegate.ops.published_rules import check_key, where_banned
from slidegate.ops.rows import key_of

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
async def test_what_is_no_address_and_has_no_kind_is_no_key(typed: str) -> None:
    with pytest.raises(ConfigurationError, match="expected an address, a network or kind:value") as caught:
        await check_key(Limiter(), typed)
    assert not typed or f"'{typed}'" not in str(caught.value)


async def test_a_word_that_the_store_knows_is_a_key() -> None:
    """What is banned, what this process counts, and what a worker counts by a function whose rule it has published."""
    limiter = Limiter()
    await limiter.ban("spam", "1h")
    await limiter.hit("smtp", "5/minute")
    rules = [Rule("*", "5/minute; 9/hour", key=lambda request: "desk", concurrency=2)]
    app = RateLimitMiddleware(hello, limiter=limiter, rules=rules)
    assert await statuses(app, 1) == [200]
    for typed in ("spam", "smtp", "desk", "everyone"):
        await check_key(limiter, typed)


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


def is_nearly_an_address(text: str) -> bool:
    """Return whether a text has four groups of which three are digits, or ``::`` and two hexadecimal groups."""
    four = len(text.split(".")) == 4 and sum(group.isdigit() for group in text.split(".")) >= 3
    hexadecimal = [group for group in re.split(r"\W", text) if re.fullmatch("[0-9A-Fa-f]+", group)]
    return four or ("::" in text and len(hexadecimal) >= 2)


GROUP = st.integers(0, 999).map(str) | st.from_regex("[0-9OlI]{1,3}|[0-9]{1,3}[:/-][0-9]{1,5}", fullmatch=True)
NEARLY = st.lists(GROUP, min_size=4, max_size=4).map(".".join)
NEARLY |= st.builds("{}:{}::{}".format, st.from_regex("[0-9][0-9a-fO]{0,4}", fullmatch=True), *[VALUES] * 2)
NEARLY |= st.ip_addresses().flatmap(lambda one: st.sampled_from([f"{one} ", f"\t{one}", f"[{one}]", f"{one}/200"]))


@given(NEARLY)
@example("203.0.113.300")
@example("2O3.0.113.7")
@example("203.0.113.7:443")
@example("203.0.113.7/40")
@example("2001:db8:zz::1")
async def test_what_is_nearly_an_address_is_never_banned(typed: str) -> None:
    assume(not is_address_or_network(typed) and (typed.strip() != typed or is_nearly_an_address(typed.strip("[]"))))
    limiter = Limiter()
    with pytest.raises(ConfigurationError):
        await limiter.ban(typed, "1h")
    assert not await limiter.unban(typed)


WORDS = st.from_regex("[A-Za-z_-]{1,9}", fullmatch=True).filter(lambda word: not re.fullmatch("[A-Fa-f]+", word))
PARTS = st.lists(WORDS | st.from_regex("[0-9A-Za-z.@]{1,9}", fullmatch=True), min_size=1, max_size=4)


@given(WORDS.filter(lambda word: word.lower() not in OF_THE_LIBRARY), PARTS, st.sampled_from([":", "::", "/", "."]))
@example("user", ["42"], "::")
@example("user", ["203", "0", "113", "300"], ".")
async def test_a_key_of_words_is_banned_whatever_is_in_it(kind: str, parts: list[str], between: str) -> None:
    limiter = Limiter()
    for typed in (kind, f"{kind}:{between.join(parts)}", f"{kind}::{between.join(parts)}"):
        assert (await limiter.ban(typed, "1h")).key == typed
        assert await limiter.unban(typed)


@given(KINDS.filter(lambda kind: kind.lower() not in OF_THE_LIBRARY), VALUES)
@example("feed", "7")
@example("ad", "5")
@example("cafe", "1")
@example("e", ":")
async def test_a_kind_and_a_value_that_are_no_address_are_a_key_whatever_they_look_like(kind: str, value: str) -> None:
    typed = f"{kind}:{value}"
    # What reads like a line of a header may show its secret value, and is refused.
    assume(value == value.strip() and not is_address_or_network(typed) and not is_nearly_an_address(typed))
    limiter = Limiter()
    await check_key(limiter, typed)
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
