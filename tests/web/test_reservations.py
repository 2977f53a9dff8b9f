"""What requests under way may hand back lets others wait a second, and not until it leaves its window."""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from fastapi import FastAPI, Request, Response
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.responses import PlainTextResponse

from slidegate import BanPolicy, Limiter, MemoryStore, RateLimit, RateLimitMiddleware, Rule
from slidegate.core.open_reservations import OpenReservations
from slidegate.testing import FakeClock

from ..asgi import Answer, call
from ..drawing import examples
from ..virtual_time import turns
from .middlewares import fields

WINDOWS_S = {"10s": 10, "1h": 3_600}


class Charge(NamedTuple):
    at_s: float
    units: int
    number: int
    """Of the request."""


class Limited(NamedTuple):
    """A limit: its amount, its window, what a request costs, and whether only wrong logins count."""

    amount: int
    window: str
    cost: int
    reserves: bool


class Model:
    """What each limit has counted of one client, in plain words."""

    def __init__(self, limits: Sequence[Limited]) -> None:
        self.limits = limits
        self.charges: list[list[Charge]] = [[] for _ in limits]
        self.under_way: set[int] = set()

    def wait_s(self, now_s: float, *, number: int) -> int:
        """Return how long a request is told to wait; 0 for one that is admitted, which is charged."""
        waits: list[float] = []
        is_full = False
        for limit, charges in zip(self.limits, self.charges, strict=True):
            length_s = WINDOWS_S[limit.window]
            counted = [charge for charge in charges if charge.at_s + length_s > now_s]
            spent = sum(charge.units for charge in counted)
            if spent + limit.cost <= limit.amount:
                continue
            back = [charge.units for charge in counted if limit.reserves and charge.number in self.under_way]
            is_full |= spent - sum(back) + limit.cost > limit.amount
            excess = spent + limit.cost - limit.amount
            for charge in counted:
                excess -= charge.units
                if excess <= 0:
                    waits.append(charge.at_s + length_s - now_s)
                    break
        if waits:
            return int(max(waits)) if is_full else 1
        for limit, charges in zip(self.limits, self.charges, strict=True):
            charges.append(Charge(now_s, limit.cost, number))
        self.under_way.add(number)
        return 0

    def end(self, number: int, *, right: bool) -> None:
        self.under_way.discard(number)
        for limit, charges in zip(self.limits, self.charges, strict=True):
            if right and limit.reserves:
                charges[:] = [charge for charge in charges if charge.number != number]


limits = st.builds(Limited, st.integers(2, 5), st.sampled_from([*WINDOWS_S]), st.integers(1, 2), st.booleans())
steps = st.one_of(
    st.just("login"),
    st.just("login"),
    st.tuples(st.integers(0, 9), st.sampled_from([200, 401, 0])),
    st.sampled_from([1, 9, 2_000]),
)


def site_of(
    limits: Sequence[Limited], ends: dict[int, asyncio.Future[int]], limiter: Limiter, *, at_endpoint: bool
) -> FastAPI:
    """Return an application whose requests end with a status when they are told."""
    options: list[dict[str, Any]] = []
    for place, one in enumerate(limits):
        judge = (lambda status: status == 401) if one.reserves else None
        text = f"{one.amount}/{one.window}"
        options.append({"limits": text, "cost": one.cost, "count_if": judge, "name": f"limit{place}"})

    async def login(request: Request) -> Response:
        number = int(request.headers["x-number"])
        ends[number] = asyncio.get_running_loop().create_future()
        return Response(status_code=await ends[number])

    app, endpoint = FastAPI(), login
    rules = [Rule("*", **option) for option in options]
    if at_endpoint and len(rules) == 1:  # several decorators are several questions
        endpoint, rules = RateLimit(**options[0])(login), []
    app.add_api_route("/", endpoint)
    app.add_middleware(RateLimitMiddleware, limiter=limiter, rules=rules)
    return app


LEFT_THE_WINDOW = ["login", 9, 9, "login", "login", (1, 401), (1, 401), "login"]
"""A request under way for longer than the window has nothing to hand back."""


@settings(max_examples=examples(150))
@example([Limited(2, "10s", 1, reserves=True)], False, LEFT_THE_WINDOW)
@given(st.lists(limits, min_size=1, max_size=2), st.booleans(), st.lists(steps, min_size=4, max_size=25))
async def test_a_refusal_that_only_reservations_cause_waits_a_second(
    given_limits: list[Limited], at_endpoint: bool, program: list[Any]
) -> None:
    """Logins begin, end as (which, status; 0 for one that is cancelled, which stays charged), or seconds pass."""
    clock = FakeClock()
    limiter, model = Limiter(MemoryStore(clock=clock, wall_clock=clock)), Model(given_limits)
    ends: dict[int, asyncio.Future[int]] = {}
    app = site_of(given_limits, ends, limiter, at_endpoint=at_endpoint)
    tasks: list[asyncio.Task[Answer]] = []
    now_s = 0.0
    for step in program:
        if isinstance(step, int):
            clock.advance(f"{step}s")
            now_s += step
        elif step == "login":
            number = len(tasks)
            tasks.append(asyncio.create_task(call(app, headers={"X-Number": str(number)})))
            await turns(30)
            wait_s = model.wait_s(now_s, number=number)
            assert (number in ends) is (wait_s == 0)
            if wait_s:
                answer = tasks[number].result()
                assert (answer.status, answer.headers["retry-after"]) == (429, str(wait_s))
                shown = [params["t"] for _, params in fields(answer.headers["ratelimit"]) if not params["r"]]
                assert all(seconds <= wait_s for seconds in shown)
        elif model.under_way:
            which, status = step
            number = sorted(model.under_way)[which % len(model.under_way)]
            if status:
                ends[number].set_result(status)
            else:
                tasks[number].cancel()
            await turns(30)
            model.end(number, right=status == 200)
    for number in model.under_way:
        ends[number].set_result(200)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not limiter.engine.reservations.by_window


async def test_a_client_that_leaves_while_a_policy_asks_about_it_leaves_no_reservation() -> None:
    async def asks(request: Request) -> bool:
        await asyncio.Event().wait()
        return True

    limiter = Limiter()
    policy = BanPolicy("3/hour", signals={401: 1}, when=asks, ban_private=True)
    rules = [Rule("*", "5/hour", count_if=[401])]
    app = RateLimitMiddleware(PlainTextResponse("no", 401), rules=rules, limiter=limiter, bans=policy)
    task = asyncio.create_task(call(app))
    await turns(30)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not limiter.engine.reservations.by_window


async def test_what_is_handed_back_again_is_noted_once() -> None:
    decision = await Limiter().hit("user:ann", "5/minute")
    noted = OpenReservations()
    noted.open(decision, [decision.checks[0][0].by])
    for _ in range(2):
        noted.close(decision, decision.checks[0])
        assert noted.by_window == {}
