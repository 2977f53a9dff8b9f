"""A digest has one spelling before the secret of the store comes and another afterwards; each leads to the other."""

from __future__ import annotations

from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from slidegate.core.decision import Bucket
from slidegate.core.limits import parse_limits
from slidegate.limiter.key_spelling import Keys

SECRET = b"s" * 32
BUCKET = Bucket("rule", parse_limits("5/minute"))

Plan: TypeAlias = "str | tuple[str, tuple[Plan, ...]]"
"""Text as it stands, or what a key is made of: a digest of a kind, a text that users write, or a key of the limiter."""

plans: st.SearchStrategy[Plan] = st.recursive(
    st.text(min_size=1, max_size=80),
    lambda parts: st.tuples(st.sampled_from(["header:X-API-Key", "combined", "text", "key"]), st.tuples(parts, parts)),
    max_leaves=6,
)


def made(keys: Keys, plan: Plan) -> str:
    """Make a key by a plan."""
    if isinstance(plan, str):
        return plan
    how, parts = plan
    text = ":".join(made(keys, part) for part in parts)
    if how == "text":
        return text
    if how == "key":
        return keys.learn(text)[0]
    return keys.digest(how, text.encode(errors="surrogatepass"))


@given(plans, plans)
def test_every_key_is_found_by_its_other_spelling(plan: Plan, other: Plan) -> None:
    late, known = Keys(None), Keys(SECRET)
    before = [made(late, each) for each in (plan, other)]
    assert late.provisional
    late.use(SECRET)
    assert not late.provisional
    checks = late.checks_after([(BUCKET, key, 1) for key in before])
    after = [made(late, each) for each in (plan, other)]
    assert [key for _, key, _ in checks] == after == [made(known, each) for each in (plan, other)]
    assert late.guarded_after([*before, (4, 1)]) == [*after, (4, 1)]
    assert [late.before(key) for key in after] == before
    late.settle()
    assert [made(late, each) for each in (plan, other)] == after
    assert [late.before(key) for key in after] == after


def test_two_processes_make_different_provisional_keys() -> None:
    assert len({Keys(None).digest("header", b"k") for _ in range(10)}) == 10
