"""What earlier versions have written: exported bans and Redis are read, an LMDB file is refused (data/README.md)."""

import json
from pathlib import Path
from typing import Any

import pytest

from slidegate import BanPolicy, ConfigurationError, Limiter, MemoryStore, Quota, header
from slidegate.stores.redis import script
from slidegate.testing import FakeClock

from ..redis_servers import RedisServer, needs_redis
from .redis.stores import fresh_prefix, store_of

DATA = Path(__file__).with_name("data")
SECRETS = {"bans.jsonl": None, "bans_with_secret.jsonl": "only for this fixture, no secret"}
API_KEY = header("X-API-Key").of("leaked-key")
POLICY = BanPolicy("3/hour", "30d", factor=12, longest="400d", name="abuse", ban_private=True)
DAY_US = 86_400_000_000


@pytest.mark.parametrize("name", SECRETS)
async def test_exported_bans_are_imported_as_they_are(name: str) -> None:
    lines = (DATA / name).read_text("utf-8").splitlines()
    clock = FakeClock(max(json.loads(line)["since_us"] for line in lines[1:]))
    async with Limiter(MemoryStore(clock=clock), secret=SECRETS[name]) as limiter:
        assert await limiter.import_bans(lines) == len(lines) - 1
        for key in ("192.0.2.7", "198.51.100.200", "203.0.113.77", "2001:db8:1:2::9", "2001:db8:ffff::7", "user:42"):
            assert await limiter.banned(key), key
        for key in ("192.0.2.6", "2001:db8:1:3::9", "2001:db8:ffff::8", "user:43"):
            assert not await limiter.banned(key), key
        assert await limiter.banned(API_KEY)
        assert [line async for line in limiter.export_bans()] == [line + "\n" for line in lines]


@pytest.mark.parametrize("on_error", ["local", "allow", "deny"])
def test_a_file_of_layout_2_ends_the_start_and_says_how_its_bans_are_taken_along(tmp_path: Path, on_error: Any) -> None:
    (tmp_path / "data.mdb").write_bytes((DATA / "data.mdb").read_bytes())
    with pytest.raises(
        ConfigurationError, match=r"contains data.mdb of .* an earlier slidegate; .*`limiter.export_bans\(\)` with the"
    ):
        Limiter.from_url(f"lmdb://{tmp_path}", on_error=on_error)
    assert (tmp_path / "data.mdb").read_bytes().startswith((DATA / "data.mdb").read_bytes())


# -- in Redis: every later version reads bans, levels and quotas; windows begin anew in another layout -----------------


NOW_US = 1_900_000_000_000_000
SCANNERS = BanPolicy(after="2/hour", duration="1h", factor=4, longest="7d", name="scanners")
QUOTA = Quota("3/month")

# As the first version has written them: these lines are never changed.
ROWS = {
    "w:user:eve": {
        b"b": b"\x00d\xa6\x0f\x0b\xc0\x06\x00"
        b'{"key":"user:eve","reason":"a reason","by":"ann","level":0,'
        b'"since_us":1900000000000000,"until_us":1900003600000000}'
    },
    "w:user:kim": {
        b"\x06\xef\xc8.9t\xb9*": b"\x01\x00\x00\x00\x01\x00\x00\x00"
        b"\x00\xe0\xfe\x11)\xc1\x06\x00\x00\xe0\xfe\x11)\xc1\x06\x00"
    },
    "s:user:bob": {
        b"\x03>\x9b\xca\xbftx\x87": b"\x00\xc4}-\x1f\xc0\x06\x00\x00d\xa6\x0f\x0b\xc0\x06\x00\x01\x00\x00\x00"
    },
}
"""By key without the prefix, and by field: a ban by hand, a quota of which one unit is spent, and a level."""


def limiter_at(server: RedisServer, prefix: str, clock: FakeClock) -> Limiter:
    return Limiter(store_of(server, prefix=prefix, readable=True, clock=clock))


async def assert_known(limiter: Limiter, clock: FakeClock) -> None:
    """Check what `ROWS` contain: who is banned, the unit of the quota, and that the next ban is the second."""
    ban = await limiter.banned("user:eve")
    assert ban == ("user:eve", "a reason", "ann", 0, NOW_US, NOW_US + 3_600_000_000)
    assert (await limiter.peek("user:kim", QUOTA, 0)).remaining == 2
    clock.advance("90m")
    assert await limiter.store.bans.strike(SCANNERS, "user:bob", 1, "") is None
    second = await limiter.store.bans.strike(SCANNERS, "user:bob", 1, "")
    assert second is not None
    assert second.level == 2


@needs_redis
async def test_what_the_first_version_has_written_is_read(server: RedisServer) -> None:
    prefix, clock = fresh_prefix(), FakeClock(NOW_US)
    for name, fields in ROWS.items():
        for field, value in fields.items():
            server.command("HSET", f"{{{prefix}}}:{name}", field, value)
    async with limiter_at(server, prefix, clock) as limiter:
        await assert_known(limiter, clock)


@needs_redis
async def test_another_layout_begins_only_windows_anew(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix, clock = fresh_prefix(), FakeClock(NOW_US)
    async with limiter_at(server, prefix, clock) as limiter:
        await limiter.ban("user:eve", "1h", reason="a reason", by="ann")
        await limiter.hit("user:kim", [QUOTA, "9/hour"])
        await limiter.store.bans.strike(SCANNERS, "user:bob", 2, "")
    monkeypatch.setattr(script, "LAYOUT", script.LAYOUT + 1)
    async with limiter_at(server, prefix, clock) as limiter:
        await assert_known(limiter, clock)
        assert (await limiter.peek("user:kim", "9/hour", 0)).remaining == 9
