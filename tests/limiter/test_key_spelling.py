"""A digest has one spelling before the secret of the store comes and another afterwards; each leads to the other."""

from __future__ import annotations

from slidegate.core.decision import Bucket
from slidegate.core.limits import parse_limits
from slidegate.limiter.key_spelling import Keys

SECRET = b"s" * 32
BUCKET = Bucket("rule", parse_limits("5/minute"))


def made(keys: Keys) -> list[str]:
    """Make a digest, one of a digest, and a long key."""
    digest = keys.digest("header", b"k")
    return [digest, keys.digest("combined", digest.encode()), keys.learn(f"{digest}:{'x' * 80}")[0], "ann"]


def test_every_key_is_found_by_its_other_spelling() -> None:
    late = Keys(None)
    before = made(late)
    assert late.provisional
    assert before[:3] != made(Keys(None))[:3], "two processes make different ones"
    late.use(SECRET)
    checks = late.checks_after([(BUCKET, key, 1) for key in before])
    after = made(Keys(SECRET))
    assert [key for _, key, _ in checks] == after == made(late)
    assert late.guarded_after([*before, (4, 1)]) == [*after, (4, 1)]
    assert [late.before(key) for key in after] == before
    late.settle()
    assert [late.before(key) for key in after] == after
