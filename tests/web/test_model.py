"""Middlewares around each other and limits at an endpoint decide, count and tell as the model does, in every worker."""

import asyncio
import logging
import re
from collections import Counter
from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from slidegate import (
    BanPolicy,
    Limiter,
    MemoryStore,
    MessageLimits,
    Networks,
    RateLimit,
    RateLimitMiddleware,
    Rule,
    client_ip,
    header,
)
from slidegate.testing import FakeClock

from ..asgi import Answer, attempt, scope_of
from ..ops.shared_rows import SharedRows
from .middlewares import Listener, Log, answer, class_of, fields
from .model import HONEYPOT, METHODS, PATHS, PROGRAMS, REQUESTS, WORKERS, Expected, Model, Program, Sent


def endpoint_of(program: Program) -> ASGIApp:
    """Return an application whose endpoint has the limits of a program, each in its form."""
    limits = [(one.form, RateLimit(**one.options())) for one in program.limits_in_order]

    def of(form: str) -> list[Any]:
        return [Depends(limit) for at, limit in limits if at == form]

    endpoint: Any = sync_answer if program.endpoint_kind == "sync" else answering
    for form, limit in reversed(limits):
        endpoint = limit(endpoint) if form == "decorator" else endpoint
    app, router = FastAPI(), APIRouter(dependencies=of("router"))
    for path in PATHS:
        if program.endpoint_kind == "class":
            app.router.routes.append(Route(path, class_of(endpoint)))
        else:
            router.api_route(path, methods=[*METHODS], dependencies=of("dependency"))(endpoint)
    app.include_router(router)
    return app


def sync_answer(request: Request) -> Response:
    if request.headers["x-status"] == "500":
        raise LookupError("no such page")
    return answer(request)


async def answering(request: Request) -> Response:
    return sync_answer(request)


def beside() -> dict[str, Any]:
    """Return what a middleware may have beside its rules: what no request meets, and a honeypot."""
    nobody = Networks(["192.0.2.77"])
    return {
        "allowlist": nobody,
        "blocklist": nobody,
        "bans": BanPolicy(name="trap", shadow=True, signals={HONEYPOT: "ban"}),
        "client": client_ip(trusted=["10.0.0.0/8"]),
        "messages": MessageLimits("1000/second"),
    }


class Middleware(RuleBasedStateMachine):
    """Two workers with the same middlewares, and the model of them."""

    @initialize(program=PROGRAMS)
    def start(self, program: Program) -> None:
        note(repr(program))
        self.model, self.listener, self.log = Model(program), Listener(), Log()
        self.failed: set[tuple[object, ...]] = set()
        logging.getLogger("slidegate").addHandler(self.log)
        self.program, self.runner = program, asyncio.Runner()
        self.clock = FakeClock(1_800_000_000_000_000)
        stores = [MemoryStore(clock=self.clock) for _ in range(2)]
        for store in stores:
            store.shared_stats = SharedRows(self.clock)
        self.workers = [[Limiter(store, observers=[self.listener]) for store in stores] for _ in range(WORKERS)]
        self.apps = [self.stack(program, limiters) for limiters in self.workers]

    def stack(self, program: Program, limiters: list[Limiter]) -> ASGIApp:
        app = endpoint_of(program)
        for layer in program.layers:
            rules = [Rule(one.path, **one.options()) for one in layer.rules]
            more = beside() if program.beside else {}
            app = RateLimitMiddleware(app, rules=rules, limiter=limiters[layer.limiter], **more)
        return app

    @rule(worker=st.integers(0, WORKERS - 1), requests=st.lists(REQUESTS, min_size=1, max_size=6))
    def requests(self, worker: int, requests: list[Sent]) -> None:
        for one in requests:
            self.request(worker, one)

    def request(self, worker: int, sent: Sent) -> None:
        self.listener.events.clear()
        self.listener.outcomes.clear()
        self.model.worker = worker
        key_of = self.workers[worker][0].key_for
        request = Request(scope_of(**sent.fields()))
        foreseen = self.model.decide(request, int(sent.status), lambda name: key_of(header("X-User").of(name)))
        self.failed |= foreseen.failed
        found, error = self.runner.run(attempt(self.apps[worker], **sent.fields()))
        assert found.status == foreseen.status
        assert (error is None) is (foreseen.status != 500)
        self.check_fields(found, foreseen)
        self.check_events(foreseen)

    def check_fields(self, found: Answer, foreseen: Expected) -> None:
        if foreseen.status in (403, 429):
            assert found.headers.get("retry-after") == (foreseen.retry_after_s and str(foreseen.retry_after_s))
            return
        policy, left = (fields(found.headers.get(name, "")) for name in ("ratelimit-policy", "ratelimit"))
        shown = [(name, one["q"], one["w"], rest["r"]) for (name, one), (_, rest) in zip(policy, left, strict=True)]
        # In the fields of one middleware the second and the third limit of a name have a number.
        assert sorted((re.sub(r"_[23]$", "", name), *rest) for name, *rest in shown) == sorted(foreseen.policies)
        if len(self.program.layers) == 1:
            assert len({name for name, *_ in shown}) == len(shown)

    def check_events(self, foreseen: Expected) -> None:
        told = [(event.kind, event.details) for event in self.listener.events]
        emitted = [(kind, details.get("rule", details.get("policy")), details["key"]) for kind, details in told]
        assert [one for one in emitted if one[0] != "refused"] == foreseen.events
        refused = [name for kind, name, _ in emitted if kind == "refused"]
        assert len(refused) == bool(foreseen.refused_by)
        assert {*refused} <= foreseen.refused_by
        outcomes = [(one.status, one.ended) for one in self.listener.outcomes]
        assert outcomes == [(foreseen.status, "refused" if refused else "success")] * len(foreseen.limiters)

    @precondition(lambda self: self.model.changeable())
    @rule(data=st.data(), amount=st.sampled_from([1, 2, 4, 7]))
    def operator_changes_a_limit(self, data: st.DataObject, amount: int) -> None:
        limiter, name = data.draw(st.sampled_from(self.model.changeable()))
        self.runner.run(self.workers[0][limiter].override(name, f"{amount}/hour", "1d"))
        self.model.changed[limiter, name] = amount
        self.look()

    @precondition(lambda self: self.model.changed)
    @rule(data=st.data())
    def operator_restores_a_limit(self, data: st.DataObject) -> None:
        limiter, name = data.draw(st.sampled_from(sorted(self.model.changed)))
        assert self.runner.run(self.workers[1][limiter].restore(name))
        del self.model.changed[limiter, name]
        self.look()

    @precondition(lambda self: self.model.exceeded)
    @rule()
    def days_pass(self) -> None:
        self.clock.advance("3d")
        self.look()
        self.model.days_pass()

    def look(self) -> None:
        """Have every worker look at what operators have changed, as its timer does twice a second."""
        for limiters in self.workers:
            for limiter in limiters:
                self.runner.run(limiter.engine.overrides.refresh())

    def teardown(self) -> None:
        logging.getLogger("slidegate").removeHandler(self.log)
        expected = Counter((what, name) for _, _, what, name in self.failed)
        self.runner.close()
        found = re.findall(r"(\w+) function of rule '(\w+)' failed", "\n".join(self.log.lines))
        assert Counter(found) == expected, "once for each function of each middleware"


def test_the_middleware_does_what_the_model_does() -> None:
    run_state_machine_as_test(
        Middleware,
        settings=settings(max_examples=100, stateful_step_count=20, deadline=None, report_multiple_bugs=False),
    )
