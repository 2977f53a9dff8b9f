"""Which systems stand on which page, and what is asked of each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from . import attacks
from .attacks import Make
from .rows import Row, Table, of
from .systems import (
    models,
    with_asgi_ratelimit,
    with_django_ratelimit,
    with_fastapi_limiter,
    with_flask_limiter,
    with_limits,
    with_slidegate,
    with_slowapi,
)

OURS = "slidegate"


@dataclass(frozen=True)
class Page:
    """What a page compares.

    Args:
        systems: The other systems, by the heads of their columns: with one limit, 100 a minute.
        two: The same with two limits, 5 a minute and 50 an hour.
        extra: Facts that no other page has.
    """

    systems: dict[str, Make]
    two: dict[str, Make] = field(default_factory=dict)
    extra: Callable[[], list[Row]] | None = None


def strategies(*limits: str) -> dict[str, Make]:
    """Return the strategies of `limits` by their names."""
    names = ("fixed-window", "sliding-window-counter", "moving-window")
    return {f"`{name}`": with_limits.made(name, *limits) for name in names}


def leaking(amount: int, window_s: int, burst: int) -> Make:
    """Return a model of nginx."""
    return models.made(models.LimitReq, amount=amount, window_s=window_s, burst=burst)


def two_of(kind: type) -> Make:
    """Return a model twice, with both limits, the longer one first."""
    return models.each(
        partial(kind, amount=50, window_s=3_600),
        partial(kind, amount=5, window_s=60),
    )


MINUTE = {"amount": 100, "window_s": 60}
PAGES: dict[str, Page] = {
    "slowapi": Page({"slowapi": with_slowapi.fixed}, {"slowapi": with_slowapi.two_limits}, with_slowapi.extra),
    "fastapi_limiter": Page(
        {"fastapi-limiter": with_fastapi_limiter.one},
        {"fastapi-limiter": with_fastapi_limiter.two_limits},
        with_fastapi_limiter.extra,
    ),
    "limits": Page(strategies("100/minute"), strategies("50/hour", "5/minute")),
    "asgi_ratelimit": Page(
        {"asgi-ratelimit": with_asgi_ratelimit.one},
        {"asgi-ratelimit": with_asgi_ratelimit.two_limits},
        with_asgi_ratelimit.extra,
    ),
    "flask_limiter": Page(
        {"Flask-Limiter": with_flask_limiter.one},
        {"Flask-Limiter": with_flask_limiter.two_limits},
        with_flask_limiter.extra,
    ),
    "django_ratelimit": Page(
        {"django-ratelimit": with_django_ratelimit.one},
        {"django-ratelimit": with_django_ratelimit.two_limits},
        with_django_ratelimit.extra,
    ),
    "express_rate_limit": Page(
        {"express-rate-limit (model)": models.made(models.FromFirstHit, **MINUTE)},
        {"express-rate-limit (model)": two_of(models.FromFirstHit)},
    ),
    "nginx": Page({"`burst=99 nodelay` (model)": leaking(100, 60, 99), "no `burst` (model)": leaking(100, 60, 0)}),
    "rack_attack": Page(
        {"rack-attack (model)": models.made(models.ByTheClock, **MINUTE)},
        {"rack-attack (model)": two_of(models.ByTheClock)},
    ),
}
"""Pages about libraries with limits over a minute."""


def promise(make: Make) -> str:
    """Return the promised and the true wait."""
    promised_s, true_s = attacks.retry_after(make)
    return f"{'none' if promised_s is None else f'{of(promised_s)} s'}; {of(true_s)} s"


def seconds(length_s: float | None) -> str:
    """Return a length of time."""
    return "never" if length_s is None else f"{of(length_s)} s"


def most(count: int | None) -> str:
    """Return the worst case of a system."""
    return f"all of {attacks.CAP:,} at once" if count is None else of(count)


QUESTIONS = (
    "Most requests of one client in any minute",
    "Most in any second",
    "`Retry-After`; when one is admitted",
    "All 100 spent at once: all 100 pass at once again after",
    "Twice the limit, evenly, for five minutes, where 500 are allowed: admitted",
)
TWO = "`5/minute` and `50/hour`, asked every two seconds for 20 minutes, where 50 are allowed: admitted"


def answers(make: Make) -> list[str]:
    """Return the answers of one system, in the order of `QUESTIONS`."""
    minute, second = attacks.worst(make)
    evenly = of(attacks.steady(make, 0.3, 1_000))
    return [most(minute), most(second), promise(make), seconds(attacks.whole_again(make)), evenly]


def both(make: Make) -> str:
    """Return the answer to the question about two limits."""
    return of(attacks.steady(make, 2, 600))


def measured() -> dict[str, list[Table]]:
    """Return the tables of all pages, by their names; the overview is called index."""
    ours, ours_both = answers(with_slidegate.default), both(with_slidegate.two_limits)
    overview = Table(["limiter", *QUESTIONS], [["slidegate", *ours]])
    tables: dict[str, list[Table]] = {"index": [overview]}
    overview.rows.append(["slidegate, `100/minute @100`", *answers(with_slidegate.exact)])
    for name, page in PAGES.items():
        theirs = {label: answers(make) for label, make in page.systems.items()}
        overview.rows.extend([label_in_overview(name, label), *said] for label, said in theirs.items())
        lines = list(zip(QUESTIONS, *theirs.values(), ours, strict=True))
        if page.two:
            lines.append((TWO, *(both(page.two[label]) for label in theirs), ours_both))
        tables[name] = [Table(["asked", *theirs, OURS], [list(line) for line in lines])]
        if page.extra:
            rows = [[row.question, row.theirs, row.ours] for row in page.extra()]
            tables[name].append(Table(["asked", *theirs, OURS], rows))
    tables["sentinel"] = [sentinel()]
    return tables


def label_in_overview(page: str, label: str) -> str:
    """Return how a system is called where it stands among others."""
    library = {"limits": "limits", "nginx": "nginx"}.get(page)
    return f"{library} {label}" if library else label


def sentinel() -> Table:
    """Return the table of Sentinel, whose flow rules count a second."""
    theirs, ours = models.made(models.LeapArray, amount=100, window_s=1), with_slidegate.a_second
    spans_s = (1.0, 0.51)
    lines = [
        [question, *(most(attacks.worst(make, spans_s, 1.0)[number]) for make in (theirs, ours))]
        for number, question in enumerate(("Most requests in any second", "Most in any 510 ms"))
    ]
    whole = [seconds(attacks.whole_again(make, 1.0)) for make in (theirs, ours)]
    lines.append(["All 100 spent at once: all 100 pass at once again after", *whole])
    return Table(["asked", "Sentinel (model)", OURS], lines)
