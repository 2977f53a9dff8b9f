"""The time that metrics and traces add to a request: Prometheus, OpenTelemetry, and decisions on spans.

A span of the benchmark's own surrounds all requests, so no request pays for beginning one. Nobody scrapes meanwhile.
"""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from opentelemetry.trace import use_span
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from slidegate import Limiter, MemoryStore, RateLimitMiddleware
from slidegate.otel import DecisionSpans, OtelMetrics
from slidegate.prometheus import PrometheusMetrics

from .measure import asgi, compared, rounds
from .report.tables import Table

PACKAGES = ("starlette", "prometheus-client", "opentelemetry-sdk")

PLENTY = 2_000_000_000
ALONE = "slidegate"
IN_A_SPAN = "slidegate in a span"
OUT = "slidegate in a span that is sampled out"


async def page(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hi")


def gate(amount: int, begin: Callable[[Limiter], object] = lambda limiter: None, *, spans: bool = False) -> ASGIApp:
    """Return a small application behind a gate whose limiter somebody reads."""
    limiter = Limiter(MemoryStore())
    app = Starlette(routes=[Route("/", page)])
    app.add_middleware(RateLimitMiddleware, limits=f"{amount}/hour", limiter=limiter)
    if spans:
        app.add_middleware(DecisionSpans)
    begin(limiter)
    return app


def prometheus(*, near_limit: bool) -> Callable[[Limiter], object]:
    """Return a function that makes the metrics of a limiter."""
    return lambda limiter: PrometheusMetrics(limiter, registry=CollectorRegistry(), near_limit=near_limit)


def opentelemetry(*, durations: bool) -> Callable[[Limiter], object]:
    """Return a function that makes the metrics of a limiter."""

    def begin(limiter: Limiter) -> object:
        provider = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
        return OtelMetrics(limiter, meter_provider=provider, near_limit=False, durations=durations)

    return begin


def in_a_span(app: ASGIApp, sampler: Sampler) -> ASGIApp:
    """Return the application with a current span, the same for all requests."""
    span = TracerProvider(sampler, shutdown_on_exit=False).get_tracer("benchmark").start_span("all")

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        with use_span(span):
            await app(scope, receive, send)

    return call


def candidates(amount: int) -> dict[str, tuple[ASGIApp, str | None]]:
    """Return the applications, each with the name of the one that it is compared to."""
    return {
        ALONE: (gate(amount), None),
        "Prometheus": (gate(amount, prometheus(near_limit=True)), ALONE),
        "Prometheus, near_limit=False": (gate(amount, prometheus(near_limit=False)), ALONE),
        "OpenTelemetry, near_limit=False": (gate(amount, opentelemetry(durations=True)), ALONE),
        "the same, durations=False": (gate(amount, opentelemetry(durations=False)), ALONE),
        IN_A_SPAN: (in_a_span(gate(amount), ALWAYS_ON), None),
        "DecisionSpans": (in_a_span(gate(amount, spans=True), ALWAYS_ON), IN_A_SPAN),
        OUT: (in_a_span(gate(amount), ALWAYS_OFF), None),
        "DecisionSpans, sampled out": (in_a_span(gate(amount, spans=True), ALWAYS_OFF), OUT),
    }


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--requests", type=int, default=2_000, help="in each round of each candidate")


async def outcome(name: str, amount: int, status: int, options: Namespace) -> Table:
    """Measure one request with one outcome."""
    apps = candidates(amount)
    for app, _ in apps.values():  # the one request that a refusing gate admits
        await asgi(app, 1, 200)()
    taken = await rounds({name: asgi(app, options.requests, status) for name, (app, _) in apps.items()}, options.rounds)
    return compared(f"One request, {name}", taken, {name: base for name, (_, base) in apps.items() if base is not None})


def tables(options: Namespace) -> Iterator[Table]:
    """Measure both outcomes."""
    for name, amount, status in (("admitted", PLENTY, 200), ("refused", 1, 429)):
        yield asyncio.run(outcome(name, amount, status, options))
