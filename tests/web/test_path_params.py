"""A limit by a typed parameter of the path counts its value, in whatever spelling a framework takes it for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from slidegate import Limiter, MemoryStore, RateLimit, RateLimitMiddleware, Rule, path_param
from slidegate.testing import FakeClock

from ..asgi import call

SIGNS, SPACES = st.sampled_from(["", "", "+", "-"]), st.sampled_from(["", "", "", " ", "\t"])
DIGITS = st.sampled_from(["5", "5", "05", "_5", "10", "1_0", "10_"])
ZEROS = st.sampled_from(["", "", "0", "00", "0_0", "0_", "_0"])
ENDS = st.sampled_from(["", "", ".", ".0", ".0_"])
INTS = st.builds("".join, st.tuples(SPACES, SIGNS, ZEROS, SIGNS, DIGITS, ENDS, SPACES))
# An exponent that begins with an underscore is no number for a rule yet.
EXPONENTS = st.builds("".join, st.tuples(st.sampled_from("eE"), SIGNS, st.text("01", min_size=1, max_size=1), ZEROS))
NUMBERS = st.tuples(SPACES, SIGNS, ZEROS | DIGITS, st.sampled_from(["", "."]), ZEROS | DIGITS, st.just("") | EXPONENTS)
NAMES = st.tuples(SPACES, SIGNS, st.sampled_from(["inf", "Infinity", "1e999"]), SPACES)
FLOATS = st.builds("".join, NUMBERS | NAMES)
IDS = [UUID(int=1), UUID(int=0xABCDEF << 96), UUID("7081965f-0432-4d1f-8a3c-5b9e2d7c6a10")]


def spelled(uuid: UUID, case: Callable[[str], str], form: str) -> str:
    return case(form.format(hyphens=uuid, plain=uuid.hex))


UUIDS = st.builds(
    spelled,
    st.sampled_from(IDS),
    st.sampled_from([str.lower, str.upper]),
    st.sampled_from(["{hyphens}", "{plain}", "urn:uuid:{hyphens}", "{{{hyphens}}}", "{{{plain}}}"]),
)
KINDS: dict[str, tuple[Any, st.SearchStrategy[str]]] = {
    "int": (int, INTS | st.sampled_from(["5", "05", "10", "-5"])),
    "float": (float, FLOATS | st.builds("{}.{}".format, *2 * [st.text("015", min_size=1, max_size=2)])),
    "uuid": (UUID, UUIDS),
}


def typed_by_fastapi(kind: type, served: list[Any], limit: RateLimit | None) -> Any:
    async def page(v: Any) -> None:
        served.append(v)

    page.__annotations__["v"] = kind
    app = FastAPI()
    app.get("/x/{v}")(page)
    return app


def typed_by_the_route(kind: type, served: list[Any], limit: RateLimit | None) -> Any:
    async def page(request: Request) -> PlainTextResponse:
        served.append(request.path_params["v"])
        return PlainTextResponse("hi")

    name = kind.__name__.lower()
    return Starlette(routes=[Route(f"/x/{{v:{name}}}", page if limit is None else limit(page))])


FORMS = [(typed_by_fastapi, False), (typed_by_the_route, False), (typed_by_the_route, True)]


@pytest.mark.parametrize(("make", "at_the_endpoint"), FORMS, ids=["FastAPI", "Starlette", "at the endpoint"])
@pytest.mark.parametrize("kind", [*KINDS])
@given(st.data())
async def test_each_value_has_one_window_whatever_its_spelling(
    make: Callable[..., Any], at_the_endpoint: bool, kind: str, data: st.DataObject
) -> None:
    made, spellings = KINDS[kind]
    limiter, served = Limiter(MemoryStore(clock=FakeClock())), list[Any]()
    rule = Rule(f"/x/{{v:{kind}}}", "1/hour", key=path_param("v"))
    limit = RateLimit("1/hour", key=path_param("v")) if at_the_endpoint else None
    bare: list[Any] = []
    read = make(made, bare, None)
    app = RateLimitMiddleware(make(made, served, limit), limiter=limiter, rules=[] if at_the_endpoint else [rule])
    for text in data.draw(st.lists(spellings, min_size=1, max_size=24)):
        if (await call(read, f"/x/{text}")).status != 200:
            continue  # the framework takes it for no value
        value = bare[-1]
        known = value in served
        assert (await call(app, f"/x/{text}")).status == (429 if known else 200), (text, value, served)
    if not served:
        return
    await limiter.reset(path_param("v").of(served[0]))
    assert (await call(app, f"/x/{served[0]}")).status in (200, 404), "an operator names the value itself"
