"""The systems that are compared, what is measured, and the facts of the pages about some of them."""

from __future__ import annotations

from functools import partial

from . import attacks
from .attacks import Make
from .rows import Table, of
from .systems import (
    models,
    with_asgi_ratelimit,
    with_django_ratelimit,
    with_fastapi_guard,
    with_fastapi_limiter,
    with_flask_limiter,
    with_limits,
    with_slidegate,
    with_slowapi,
)

OURS = "slidegate"
MINUTE = {"amount": 100, "window_s": 60}


def leaking(burst: int) -> Make:
    """Return a model of nginx."""
    return models.made(models.LimitReq, **MINUTE, burst=burst)


def two_of(kind: type) -> Make:
    """Return a model with both limits, the longer one first."""
    return models.each(
        partial(kind, amount=50, window_s=3_600),
        partial(kind, amount=5, window_s=60),
    )


def strategy(name: str) -> tuple[Make, Make]:
    """Return a strategy of `limits` with one limit and with two."""
    return with_limits.made(name, "100/minute"), with_limits.made(name, "50/hour", "5/minute")


SYSTEMS: dict[str, tuple[Make, Make | None]] = {
    OURS: (with_slidegate.default, with_slidegate.two_limits),
    "slidegate, `100/minute @100`": (with_slidegate.exact, with_slidegate.two_limits),
    "slowapi": (with_slowapi.fixed, with_slowapi.two_limits),
    "fastapi-limiter": (with_fastapi_limiter.one, with_fastapi_limiter.two_limits),
    "fastapi-guard": (with_fastapi_guard.one, with_fastapi_guard.two_limits),
    **{f"limits `{name}`": strategy(name) for name in ("fixed-window", "sliding-window-counter", "moving-window")},
    "asgi-ratelimit": (with_asgi_ratelimit.one, with_asgi_ratelimit.two_limits),
    "Flask-Limiter": (with_flask_limiter.one, with_flask_limiter.two_limits),
    "django-ratelimit": (with_django_ratelimit.one, with_django_ratelimit.two_limits),
    "express-rate-limit (model)": (models.made(models.FromFirstHit, **MINUTE), two_of(models.FromFirstHit)),
    "nginx `burst=99 nodelay` (model)": (leaking(99), None),
    "nginx no `burst` (model)": (leaking(0), None),
    "rack-attack (model)": (models.made(models.ByTheClock, **MINUTE), two_of(models.ByTheClock)),
    "Sentinel (model)": (models.made(models.LeapArray, **MINUTE), None),
}
"""Each with one limit, 100 a minute, and with two, 5 a minute and 50 an hour; None if it supports only one."""
PAGES = {
    "slowapi": [("slowapi", with_slowapi.extra)],
    "fastapi": [("fastapi-limiter", with_fastapi_limiter.extra), ("fastapi-guard", with_fastapi_guard.extra)],
}
"""Facts that only one page has."""


def promise(make: Make) -> str:
    """Return the promised and the true wait."""
    promised_s, true_s = attacks.retry_after(make)
    return f"{'none' if promised_s is None else f'{of(promised_s)} s'}; {of(true_s)} s"


def seconds(length_s: float | None) -> str:
    """Return a duration as text."""
    return "never" if length_s is None else f"{of(length_s)} s"


def most(count: int | None) -> str:
    """Return the worst case of a system as text."""
    return f"all of {attacks.CAP:,} at once" if count is None else of(count)


QUESTIONS = (
    "Most in any minute",
    "Most in any second",
    "`Retry-After`; when one is admitted",
    "Spent at once: all 100 again after",
    "Twice as often, of 500: admitted",
)
TWO = "`5/minute` and `50/hour`, of 50: admitted"


def answers(make: Make, two: Make | None) -> list[str]:
    """Return the results of one system, in the order of `QUESTIONS` and `TWO`."""
    minute, second = attacks.worst(make)
    evenly = of(attacks.steady(make, 0.3, 1_000))
    both = "" if two is None else of(attacks.steady(two, 2, 600))
    return [most(minute), most(second), promise(make), seconds(attacks.whole_again(make)), evenly, both]


def measured() -> dict[str, list[Table]]:
    """Return the tables of all pages by name; `index` compares all systems."""
    rows = [[name, *answers(one, two)] for name, (one, two) in SYSTEMS.items()]
    tables = {"index": [Table(["limiter", *QUESTIONS, TWO], rows)]}
    for page, libraries in PAGES.items():
        tables[page] = [
            Table(["asked", name, OURS], [[row.question, row.theirs, row.ours] for row in extra()])
            for name, extra in libraries
        ]
    return tables
