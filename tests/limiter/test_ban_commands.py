"""What users do with bans."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from string import ascii_letters
from typing import Any
from uuid import UUID

import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate import BanPolicy, ConfigurationError, Limiter, MemoryStore, client_ip, cookie, header, path_param, query
from slidegate.core import InvalidKey, Reason, StoreTimeout
from slidegate.limiter.aio import STEP
from slidegate.testing import FakeClock, RecordingObserver

from ..remote_stores import RemoteStore
from ..virtual_time import VirtualTime

POLICY = BanPolicy("3/10m", "1h")


async def keys(limiter: Limiter) -> list[str]:
    return [ban.key async for ban in limiter.bans()]


NAMES = """{word}y {word}y.example.com {word}@example.com {word}y.{word} v{n}.{n} tenant-{n} {word}y::{n} {n}-{n}
user:{n} user:203.0.113.{word} key:l{n}.0.0.1 org/{word}/{n} acme.com oil.co id::42 lol 1O x:1:2:y::
tenant/7 headers:x x:y:z"""
"""What applications call a client."""


COMMANDS: list[Callable[[Limiter, str], Any]] = [
    lambda limiter, key: limiter.ban(key, "1h"),
    lambda limiter, key: limiter.strike(key, BanPolicy("1/10m", "1h")),
    Limiter.banned,
    Limiter.unban,
]


def mistyped(typed: str, digit: str, bad: str, at: int, prefix: str) -> str:
    """Return an address with letters in the place of one digit, or with one wrong character."""
    begins, colon, rest = typed.rpartition(":")  # a word before a colon would be a kind
    return begins + colon + (rest.replace(digit, bad) if digit in rest else rest[:at] + bad + rest[at:]) + prefix


MISTYPED = st.builds(
    lambda address, typo, at, prefix: mistyped(address, *typo, at, prefix),
    st.ip_addresses().map(str),
    st.sampled_from([("0", "O"), ("0", "o"), ("1", "l"), ("1", "|"), *(("x", bad) for bad in "gnxzGQ*?_-;=,")]),
    st.integers(0, 9),
    st.integers(0, 128).map("/{}".format) | st.just(""),
)
PARTS = st.sampled_from(["10.0.0", "10.0.0/24", "203.0.113.", "2130706433", "0x7f000001", "2001:db8", "[2001:db8::1"])


@given(MISTYPED | PARTS, st.sampled_from(COMMANDS))
async def test_what_was_meant_as_an_address_is_refused_by_each_command(typed: str, command: Any) -> None:
    limiter = Limiter()
    with pytest.raises(ConfigurationError) as raised:
        await command(limiter, typed)
    assert str(raised.value).startswith(f"ban: {typed!r} is not an address or network; ")
    assert await keys(limiter) == []


@given(st.text("abcdefghijklmnopqrstuvwxyz", min_size=2, max_size=12), st.integers(0, 2**64), st.uuids())
async def test_what_applications_call_a_client_is_banned_as_it_is_counted(word: str, number: int, own: UUID) -> None:
    limiter = Limiter()
    names: list[Any] = [*NAMES.format(word=word, n=number).split(), str(own), f"{word}y {word}", "R\u00e9sum\u00e9: x"]
    for name in names:
        assert (await limiter.ban(name, "1h")).key == name
        assert (await limiter.hit(name, "5/minute")).reason is Reason.BANNED
        assert await limiter.banned(name)
        assert await limiter.unban(name)
        assert (await limiter.hit(name, "5/minute")).allowed
        assert await limiter.strike(name, BanPolicy("1/10m", "1h"))


async def test_a_network_is_refused_by_the_bans_of_wider_ones(limiter: Limiter) -> None:
    """As the key of an IPv6 client, for example, which is its /64; the contract of stores has any networks."""
    await limiter.ban("198.51.100.0/25", "2h")
    assert await limiter.banned("198.51.100.0/24") is None
    wider = await limiter.ban("198.51.100.0/24", "1h")
    assert await limiter.banned("198.51.100.0/24") == wider
    for widest, own in (("198.0.0.0/8", "198.51.100.0/24"), ("2001::/19", "2001:db8::/64")):
        ban = await limiter.ban(widest, "2h")
        assert await limiter.banned(own) == ban


async def test_an_address_is_refused_by_the_ban_of_a_network_that_a_policy_counts(limiter: Limiter) -> None:
    policy = BanPolicy("1/10m", "1h", key=client_ip(ipv4_prefix=24, ipv6_prefix=56))
    for network, own in (("203.0.113.0/24", "203.0.113.7"), ("2001:db8::/56", "2001:db8::7")):
        ban = await limiter.strike(network, policy)
        assert ban is not None
        assert await limiter.banned(own) == ban


async def test_a_ban_refuses_until_it_ends_or_is_taken_back(limiter: Limiter, clock: FakeClock) -> None:
    ban = await limiter.ban("203.0.113.7", "1h", reason="manual")
    assert (ban.reason, ban.by, ban.level, ban.until) == ("manual", "manual", 0, ban.since + timedelta(hours=1))
    refused = await limiter.hit("203.0.113.7", "5/minute")
    assert (refused.retry_after, refused.ban) == (3_600, ban)
    assert repr(refused) == "<Decision banned by='manual' retry_after_us=3600000000 reset_after_us=0>"
    assert (await limiter.peek("203.0.113.7", "5/minute")).reason is Reason.BANNED
    assert [await limiter.unban("203.0.113.7") for _ in range(2)] == [True, False]
    assert (await limiter.hit("203.0.113.7", "5/minute")).remaining == 4, "nothing was charged"
    await limiter.ban("203.0.113.7", timedelta(seconds=90))
    clock.advance("90s")
    assert await limiter.hit("203.0.113.7", "5/minute")
    assert (await limiter.ban("user:42", "permanent")).until is None


async def test_spellings_of_an_address_are_one_address(limiter: Limiter) -> None:
    await limiter.ban("192.0.2.0/24", "1h")
    assert (await limiter.ban("2001:db8:1:2::a", "1h")).key == "2001:db8:1:2::/64"
    for banned in ("::FFFF:C000:0204", "192.0.2.4/32", "2001:db8:1:2:ffff::9"):
        assert not await limiter.hit(banned, "5/minute")
    for other in ("192.0.3.4", "192.0.2.0/25", "a/b", "2001:db8:1:3::a"):
        assert await limiter.hit(other, "5/minute")


async def test_a_key_that_reads_as_a_wide_network_strikes_nobody_and_by_hand_it_is_meant(limiter: Limiter) -> None:
    assert await limiter.strike("192.0.0.0/16", POLICY, 1_000) is None
    assert await keys(limiter) == []
    assert (await limiter.ban("192.0.0.0/16", "1h")).key == "192.0.0.0/16"


async def test_lines_that_are_no_bans_are_named_and_nothing_is_imported(limiter: Limiter) -> None:
    await limiter.ban("192.0.2.0/24", "permanent", reason='"caf\u00e9"\n')
    await limiter.strike("user:42", POLICY, 3)
    fresh, lines = Limiter(), [line async for line in limiter.export_bans()]
    assert all(line.isascii() and line.endswith("}\n") for line in lines)
    for odd in ("[" * 100_000, "1" * 5_000):
        with pytest.raises(ConfigurationError, match=r"line 4: expected JSON, not .{80,250}$"):
            await fresh.import_bans([*lines, odd])
    assert await keys(fresh) == []
    assert [line async for line in fresh.export_bans()] == lines[:1]
    assert await fresh.import_bans(limiter.export_bans()) == 1, "the other one has ended by this store's clock"
    assert [line async for line in fresh.export_bans()] == lines[:2]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_long_lists_of_bans_let_others_go_on_under_either_event_loop(backend: str) -> None:
    # Five steps of them: whoever lists them is no longer alone after each.
    made, count, turns = Limiter(), 5 * STEP + 1, 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async def main() -> None:
        for number in range(count):
            await made.ban(f"user:{number}", "1h")
        async with anyio.create_task_group() as group:
            group.start_soon(others)
            for listing, length in ((made.bans(), count), (made.export_bans(), 1 + count)):
                before = turns
                assert len([one async for one in listing]) == length
                assert turns >= before + 3
            group.cancel_scope.cancel()

    anyio.run(main, backend=backend)


async def test_events_tell_who_did_what(limiter: Limiter) -> None:
    observer = RecordingObserver()
    limiter.observe(observer)
    await limiter.ban("2001:db8::1", "1h", by="ann")
    await limiter.unban("2001:db8::2", by="bob")
    await limiter.ban("user:42", "1h")
    await limiter.ban("user:43", "1h", by=" ", reason=" ")  # the empty fields of a form
    assert [(event.kind, event.details["key"], event.details["by"]) for event in observer.events] == [
        ("banned", "2001:db8::/64", "ann"),
        ("unbanned", "2001:db8::/64", "bob"),
        ("banned", "user:42", "manual"),
        ("banned", "user:43", "manual"),
    ]
    assert observer.events[-1].message.endswith(" by manual")


async def test_an_import_has_the_longer_the_more_lines_it_has(clock: FakeClock) -> None:
    class Slow(RemoteStore):
        async def answer(self, question: Callable[..., Any], *arguments: Any) -> Any:
            await asyncio.sleep(40)
            return question(*arguments)

    limiter = Limiter(MemoryStore(clock=clock))
    for number in range(5_000):
        await limiter.ban(f"user:{number}", "1h")
    lines = [line async for line in limiter.export_bans()]
    VirtualTime(clock)
    async with Limiter(Slow(clock)) as shared:
        with pytest.raises(StoreTimeout, match="no answer within 30"):
            await shared.import_bans(lines[:2])
        assert await shared.import_bans(lines) == 5_000


# -- keys that requests can have: values of clients are stored as digests only -----------------------------------------

SOURCES = {"header": header, "cookie": cookie, "query": query, "path": path_param}
NAMED = st.text(ascii_letters + "-_", min_size=1, max_size=12).filter(lambda name: name[0].isalpha())
VALUES = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=24).map(lambda text: f"s3cr3t{text}")
CASES = st.sampled_from([str.lower, str.upper, str.capitalize])


@given(st.sampled_from([*SOURCES]), CASES, NAMED, st.sampled_from([":", "#", "=", ": ", " "]), VALUES)
async def test_what_a_client_sends_is_banned_by_its_digest_and_refused_if_it_is_readable(
    source: str, case: Callable[[str], str], name: str, between: str, value: str
) -> None:
    limiter, key = Limiter(), SOURCES[source](name).of(value)
    digest = limiter.key_for(key)
    for spelled in (key, digest):
        assert (await limiter.ban(spelled, "1h")).key == digest
        assert (await limiter.hit(key, "5/minute")).reason is Reason.BANNED
        assert await limiter.unban(spelled)
    for typed in (f"{case(source)}:{name}{between}{value}", f"{case(source)}:{name}", f"{case(source)}: {name}"):
        with pytest.raises(InvalidKey) as refused:
            await limiter.ban(typed, "1h")
        assert value not in str(refused.value).replace(name, "")
        assert f"no request is counted as '{source}:{name}" in str(refused.value)
        assert f'{source.replace("path", "path_param")}("{name}' in str(refused.value)
    assert await keys(limiter) == []


async def test_keys_of_several_parts_are_banned() -> None:
    limiter = Limiter()
    key = limiter.digest("combined", b"of two parts")
    await limiter.ban(key, "1h")
    assert not await limiter.hit(key, "5/minute")


async def test_a_ban_that_was_written_before_can_still_be_lifted() -> None:
    limiter = Limiter()
    limiter.store.bans.ban("header:x-api-key:k-bob", None, "", "an earlier version")
    assert await limiter.unban("header:x-api-key:k-bob")
