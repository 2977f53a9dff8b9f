"""What an earlier slidegate has written: exported bans are read, and an LMDB file is refused. See data/README.md."""

import json
from pathlib import Path
from typing import Any

import pytest

from slidegate import BanPolicy, ConfigurationError, Limiter, MemoryStore, header
from slidegate.testing import FakeClock

DATA = Path(__file__).with_name("data")
SECRETS = {"bans.jsonl": None, "bans_with_secret.jsonl": "only for this fixture, no secret"}
API_KEY = header("X-API-Key").of("leaked-key")
POLICY = BanPolicy("3/hour", "30d", factor=12, longest="400d", name="abuse", ban_private=True)
DAY_US = 86_400_000_000

# key: (by, reason, level, days, or None for ever)
BANS: dict[str, tuple[str, str, int, int | None]] = {
    "192.0.2.7": ("ann", "scanner, by request", 0, None),
    "192.0.2.8": ("ann", "until the invoice is paid", 0, 400),
    "192.0.2.66": ("abuse", "refused", 2, 360),
    "198.51.100.0/24": ("bob", "a network", 0, None),
    "2001:db8:1:2::/64": ("ann", "a network of one customer", 0, None),
    "2001:db8:ffff::7/128": ("ann", "one address", 0, None),
    "203.0.113.0/24": ("ann", "a network for a month", 0, 30),
    "203.0.113.5": ("abuse", "refused", 1, 30),
    "203.0.113.6": ("abuse", "refused", 1, 30),
    "header:x-api-key": ("ann", "a key that leaked", 0, None),
    "user:42": ("bob", "chargebacks", 0, None),
    "user:mallory": ("scanner", "asked for /.env", 1, 30),
}


async def bans_of(limiter: Limiter) -> dict[str, tuple[str, str, int, int | None]]:
    """Return the bans as BANS has them, with the kind of a digest instead of the digest."""
    return {
        ban.key.partition("#")[0]: (
            ban.by,
            ban.reason,
            ban.level,
            None if ban.until is None else round((ban.until - ban.since).total_seconds() * 1e6 / DAY_US),
        )
        async for ban in limiter.bans()
    }


@pytest.mark.parametrize("name", SECRETS)
async def test_exported_bans_are_imported_as_they_are(name: str) -> None:
    lines = (DATA / name).read_text("utf-8").splitlines()
    clock = FakeClock(max(json.loads(line)["since_us"] for line in lines[1:]))
    async with Limiter(MemoryStore(clock=clock), secret=SECRETS[name]) as limiter:
        assert await limiter.import_bans(lines) == len(BANS)
        assert await bans_of(limiter) == BANS
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
