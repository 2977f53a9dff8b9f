"""The gateway: its accounts and budgets, the cost of a question before its answer, and the words of refusals."""

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel, Field, ValidationError
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response

from slidegate import Decision, Limit, Limiter, Quota, RateLimit, RateLimitMiddleware, Rule, client_ip
from slidegate.core import Reason

from .relay import RULE, Relay
from .upstream import ModelError, Upstream

BUDGETS = (Limit(1_000, "1m", resolution=60, name="minute"), Quota("6000/day", name="day"))
"""Tokens of each account: of questions and answers together."""
AT_ONCE = 2
LARGEST_BODY = 65_536


class Ask(BaseModel):
    """A question to the model."""

    prompt: str = Field(min_length=1, max_length=20_000)
    max_tokens: int = Field(default=256, ge=1, le=4_000)


class Accounts:
    """Knows accounts by their API keys, of which it keeps digests.

    Args:
        keys: The API key of each account, by its name.
    """

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._names = {digest_of(key): name for name, key in keys.items()}

    def of(self, connection: HTTPConnection) -> str:
        """Return the key by which a request is counted; empty where nobody has this API key."""
        scheme, _, key = connection.headers.get("Authorization", "").partition(" ")
        name = self._names.get(digest_of(key)) if scheme.lower() == "bearer" else None
        return f"account:{name}" if name else ""


def digest_of(key: str) -> str:
    """Return the text under which an API key is kept."""
    return hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()


def tokens_in(text: str) -> int:
    """Count tokens. It stands for the tokenizer of the model, and counts words."""
    return len(text.split())


async def cost_before(request: HTTPConnection) -> int:
    """Return the cost that is known before the answer: the tokens of the prompt."""
    assert isinstance(request, Request)
    try:
        return tokens_in(Ask.model_validate_json(await request.body()).prompt)
    except ValidationError:
        return 1  # the endpoint says what is wrong with it


def is_too_large(request: HTTPConnection) -> bool:
    """Tell whether a body is larger than any question, or of a length that nobody knows."""
    length = request.headers.get("Content-Length", "0")
    unknown = "Transfer-Encoding" in request.headers or not (length.isascii() and length.isdecimal())
    return unknown or len(length) > 9 or int(length) > LARGEST_BODY


def is_charged(status: int) -> bool:
    """Tell whether a question is charged: one that the model did not answer is not."""
    return status < 500


def refused(request: HTTPConnection, decision: Decision) -> Response:
    """Say which limit has no room, in the form of the gateway's other errors."""
    if decision.reason == Reason.BLOCKED:
        return problem(413, f"say how large the question is, and no more than {LARGEST_BODY:,} bytes")
    if decision.reason == Reason.TOO_LARGE:
        return problem(413, "the prompt is larger than any budget of tokens")
    names = [state.name for state in decision.violated]
    return problem(429, f"no room: {', '.join(names)}")


def problem(status: int, text: str, retry_after_s: int | None = None) -> JSONResponse:
    """Make the answer to a question that gets none."""
    headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    return JSONResponse({"error": text}, status, headers)


def make_app(limiter: Limiter, accounts: Accounts, upstream: Upstream, *, proxies: Sequence[str] = ()) -> FastAPI:
    """Return the gateway.

    Args:
        limiter: Counts tokens and requests.
        accounts: The accounts that may ask.
        upstream: The way to the model; it is closed with the gateway.
        proxies: The networks of proxies that may name the client.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await upstream.close()

    async def known(request: Request) -> None:
        if not accounts.of(request):
            raise HTTPException(401, "this API key is nobody's")

    budget = RateLimit(BUDGETS, key=accounts.of, cost=cost_before, count_if=is_charged, name=RULE)
    app = FastAPI(title="Gateway", lifespan=lifespan)
    app.add_middleware(
        RateLimitMiddleware,
        limiter=limiter,
        client=client_ip(trusted=proxies),
        rules=[
            # FastAPI reads a body before it asks anybody, so the size is looked at here.
            Rule("*", block=True, status=413, when=is_too_large, name="size"),
            # From the admission to the last token of the answer.
            Rule("/v1/ask", concurrency=AT_ONCE, key=accounts.of, name="streams"),
            Rule("*", "600/minute", name="address"),
        ],
        on_refused=refused,
    )

    # In this order: a stranger is turned away before tokens are counted.
    @app.post("/v1/ask", dependencies=[Depends(known), Depends(budget)])
    async def ask(asked: Ask, request: Request) -> Response:
        try:
            answer = await upstream.ask(asked.prompt, asked.max_tokens)
        except ModelError as error:
            return problem(error.status, str(error), error.retry_after_s)
        return Relay(request, answer)

    return app
