"""The limiter: keys, addresses of stores, and the words around a store."""

import asyncio
from hashlib import blake2b
from pathlib import Path
from typing import Any

import anyio
import pytest

from slidegate import Limit, header
from slidegate.core import ConfigurationError
from slidegate.limiter import MAX_KEY_BYTES, Limiter
from slidegate.stores.memory.store import MemoryStore
from slidegate.testing import RecordingObserver

from ..hurry import at_once, hurried
from ..remote_stores import RemoteStore, SlowStore

SECOND_US = 1_000_000
API_KEY = header("X-API-Key").of("k123")
LONG_KEY = "a long key of somebody's own " * 10
SECRET = b"only for this test, no secret"


async def test_a_reset_forgets_a_key_however_it_is_spelled(limiter: Limiter) -> None:
    await limiter.hit("2001:db8::1", "5/minute", 5, rule="login")
    await limiter.hit("2001:db8::1", "5/minute", 5)
    assert await limiter.reset("2001:DB8:0:0::2") is True
    assert await limiter.hit("2001:db8::1", "5/minute", 5, rule="login")
    assert await limiter.reset("nobody") is False


async def test_a_limiter_closes_its_store_also_where_an_observer_never_ends() -> None:
    class Endless(RecordingObserver):
        async def end(self) -> None:
            await anyio.sleep_forever()

    store = SlowStore()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(Limiter(store, observers=[Endless()]).close(), 0.01)
    assert store.closed == 1


async def test_a_limiter_closes_once_however_often_it_is_asked() -> None:
    store = SlowStore()
    async with Limiter(store) as limiter:
        await limiter.close()
    await limiter.close()
    assert store.closed == 1
    async with Limiter() as limiter:
        assert await limiter.hit("ann", "5/minute")
    await limiter.close()


@pytest.mark.parametrize(("letter", "most"), [("x", 64), ("\u00e9", 32), ("\U0001f600", 16)], ids=ascii)
async def test_a_key_of_64_bytes_is_kept_as_it_is_and_a_longer_one_is_not(
    limiter: Limiter, letter: str, most: int
) -> None:
    keys = [(await limiter.hit(letter * length, "5/minute")).states[0].key for length in (most, most + 1)]
    assert keys[0] == letter * most
    assert keys[1].startswith("long#")


@pytest.mark.parametrize("secret", [None, SECRET])
@pytest.mark.parametrize("where", ["argument", "environment"])
def test_a_digest_is_16_bytes_of_blake2b_with_the_secret_of_the_limiter_or_the_environment(
    where: str, secret: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: Any = {}
    if where == "argument":
        given = {"secret": secret}
        monkeypatch.setenv("SLIDEGATE_SECRET", "of no use where one is given")
    if secret is None:
        monkeypatch.delenv("SLIDEGATE_SECRET", raising=False)
    elif where == "environment":
        monkeypatch.setenv("SLIDEGATE_SECRET", secret.decode())
    made = [Limiter(**given), Limiter(RemoteStore(), **given), Limiter.from_url(f"lmdb://{tmp_path}/store", **given)]
    keyed: Any = {"person": b"slidegate"} if secret is None else {"key": secret}
    for key, hashed in ((API_KEY, b"header:x-api-key\0k123"), (LONG_KEY, b"long\0" + LONG_KEY.encode())):
        expected = blake2b(hashed, digest_size=16, **keyed).hexdigest()
        assert {limiter.key_for(key).partition("#")[2] for limiter in made} == {expected}
    assert made[0].key_for(API_KEY).startswith("header:x-api-key#")
    kind = "a kind that is much longer than it should be, but then one never knows"
    assert len(made[0].digest(kind, b"")) == MAX_KEY_BYTES


def test_a_secret_in_the_environment_that_is_none_makes_no_limiter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIDEGATE_SECRET", "short")
    for make in (Limiter, lambda: Limiter.from_url(f"lmdb://{tmp_path}/new")):
        with pytest.raises(ConfigurationError, match="SLIDEGATE_SECRET: expected 16 to 64 bytes"):
            make()
    assert not (tmp_path / "new").exists()


class Owner:
    """What counts without a name."""


def test_a_rule_is_claimed_once_under_its_own_name_while_its_owner_lives() -> None:
    unique_id, owners = Limiter().engine.unique_id, [Owner() for _ in range(3)]
    claimed = [unique_id(rule, owners[at]) for rule, at in (("api", 0), ("login", 0), ("api", 1), ("api", 2))]
    assert claimed == ["api", "login", "api#2", "api#3"]
    del owners[1]
    assert unique_id("api", Owner()) == "api#2"
    owners = [Owner() for _ in range(300)]
    with hurried(collecting=False):
        parts = at_once(lambda thread: [unique_id("api", owner) for owner in owners[thread::3]], 3)
    assert len({*parts[0], *parts[1], *parts[2]}) == 300


@pytest.mark.parametrize(
    ("url", "max_keys"),
    [("memory://", 100_000), ("memory://?max_keys=50", 50), ("MEMORY://?max_bans=7&max_keys=00050", 50)],
)
async def test_a_limiter_is_made_from_an_address(url: str, max_keys: int) -> None:
    observer = RecordingObserver()
    async with Limiter.from_url(url, observers=[observer]) as limiter:
        assert isinstance(limiter.store, MemoryStore)
        assert limiter.store.max_keys == max_keys
        for key in range(60):
            await limiter.hit(f"user:{key}", "5/minute")
    assert observer.kinds == (["keys_shared"] if max_keys == 50 else [])


@pytest.mark.parametrize("cost", [-1, 1.0, 1.5, True, "1", None, float("nan")])
async def test_a_cost_that_is_no_whole_number_is_named_whatever_was_asked_before(limiter: Limiter, cost: Any) -> None:
    for _ in range(3):
        assert await limiter.hit("ann", "100/minute")
        for call in (limiter.hit("ann", "100/minute", cost), limiter.peek("ann", "100/minute", cost)):
            with pytest.raises(ConfigurationError, match="cost: expected a whole number, 0 or more, for example 1, "):
                await call
    assert (await limiter.hit("ann", "100/minute", 2)).remaining == 95


@pytest.mark.parametrize("limits", ["5/minute; 50/hour", ["5/minute", "50/hour"], ("5/minute", Limit(50, "1h"))])
async def test_the_question_of_a_call_is_prepared_once(limits: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    limiter, prepared = Limiter(), list[Any]()
    prepare = limiter.engine.prepare
    monkeypatch.setattr(limiter.engine, "prepare", lambda *asked: prepared.append(asked) or prepare(*asked))
    assert [(await limiter.hit("user:1", limits)).remaining for _ in range(3)] == [4, 3, 2]
    assert len(prepared) == 1
