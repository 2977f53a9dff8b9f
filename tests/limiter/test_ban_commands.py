"""What users do with bans."""

import asyncio
from collections.abc import Callable
from string import ascii_letters
from typing import Any
from uuid import UUID

import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate import BanPolicy, ConfigurationError, Limiter, MemoryStore, cookie, header, path_param, query
from slidegate.core import InvalidKey, Reason, StoreTimeout
from slidegate.limiter.aio import STEP
from slidegate.testing import FakeClock

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
