"""A limit on a path with parameters counts whatever Starlette or pydantic takes for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from random import Random
from typing import Any
from uuid import UUID

import pytest
from fastapi import FastAPI
from pydantic import TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.routing import Route, compile_path

from slidegate import RateLimitMiddleware, Rule

from ..asgi import call, hello, page

PLENTY = "1000000/minute"


async def names(app: Any, path: str, method: str = "GET", **more: Any) -> list[str]:
    """Return the names of the limits that one request was counted on."""
    policy = (await call(app, path, method, raw_path=b"/", **more)).headers.get("ratelimit-policy", "")
    return [item.split('"')[1] for item in policy.split(", ") if item]


async def uncounted(rule: Rule, texts: Iterable[str], app: Any = hello) -> list[str]:
    """Return those paths that a rule does not count."""
    middleware = RateLimitMiddleware(app, rules=[rule])
    return [text for text in texts if await names(middleware, text) == []]


# Random templates, and what Starlette's own routes take for them.

KINDS = ["", ":str", ":int", ":float", ":uuid"]
LITERALS = ["", "", "_", "-", ".", "v", "5", "x", "e", "+", "\u00e9", "0", "inf", "a-b", "(", " "]
SOME_UUID = "0b4f2a9e-3c1d-4e5f-8a6b-7c8d9e0f1a2b"
TEXTS = {
    "": ["a", "5", "a_b", "1_2", "v.1", "-", "_", "x5", "55", "\u00e9", " ", "a b", "{", "5e5"],
    ":int": ["0", "5", "55", "05", "123", "5055"],
    ":float": ["0", "5", "5.5", "05.50", "55"],
    ":uuid": [SOME_UUID, SOME_UUID.replace("-", ""), SOME_UUID.upper()],
    ":path": ["", "a", "a/b", "5/", "a//b", "5_5/x"],
}


def template(random: Random, most: int) -> str:
    """Return a random path in Starlette's syntax, with at most so many parameters in one segment."""
    path, number = "", 0
    for _ in range(random.randint(1, 3)):
        segment = ""
        for _ in range(random.randint(0, most)):
            number += 1
            around = random.choices(LITERALS, k=2) if most > 1 else ("", "")
            segment += f"{around[0]}{{p{number}{random.choice(KINDS)}}}{around[1]}"
        path += f"/{segment or 'here'}"
    return f"{path}/{{rest:path}}" if random.random() < 0.1 else path


def texts_of(written: str, random: Random, count: int) -> Iterator[str]:
    """Yield paths that Starlette matches to a template."""
    pattern = compile_path(written)[0]
    parts = written.replace("}", "{").split("{")
    for _ in range(count):
        path = parts[0]
        for parameter, literal in zip(parts[1::2], parts[2::2], strict=True):
            kind = parameter[parameter.find(":") :] if ":" in parameter else ""
            path += random.choice(TEXTS[kind.removesuffix("str").removesuffix(":") or ""]) + literal
        if pattern.match(path):
            yield path


async def missed(most: int, seeds: Iterable[int]) -> list[str]:
    """Return requests that a route of Starlette's served and a rule with its path did not count."""
    found = []
    for seed in seeds:
        random = Random(seed)
        written = template(random, most)
        app = Starlette(routes=[Route(written, page)])
        middleware = RateLimitMiddleware(app, rules=[Rule(written, PLENTY, name="it")])
        for path in dict.fromkeys(texts_of(written, random, 8)):
            answer = await call(middleware, path, raw_path=b"/")
            assert answer.status == 200, f"seed {seed}: {written!r} does not serve {path!r}"
            if "ratelimit-policy" not in answer.headers:
                found.append(f"seed {seed}: {written!r} serves {path!r}")
    return found


async def test_a_parameter_that_is_a_whole_segment_counts_what_starlette_matches() -> None:
    assert await missed(1, range(200)) == []


async def test_parameters_beside_text_count_what_starlette_matches() -> None:
    assert await missed(3, range(1_000, 1_250)) == []


@pytest.mark.deep
async def test_parameters_beside_text_count_what_starlette_matches_in_many_templates() -> None:
    assert await missed(4, range(10_000, 20_000)) == []


@pytest.mark.parametrize("options", [{"limits": "1/minute"}, {"block": True}], ids=str)
@pytest.mark.parametrize(("written", "path"), [("/tiles/{x:int}_{y:int}", "/tiles/1_2"), ("/{n:int}5", "/155")])
async def test_nothing_passes_two_numbers_in_a_segment(written: str, path: str, options: dict[str, Any]) -> None:
    app = Starlette(routes=[Route(written, page)])
    middleware = RateLimitMiddleware(app, rules=[Rule(written, **options)])
    refused = 403 if "block" in options else 429
    assert (await call(middleware, path)).status == (403 if "block" in options else 200)
    assert (await call(middleware, path)).status == refused


# What pydantic takes for a number or a UUID.

SHORT = "0159eE+-._infaINFty "


def accepted(kind: type, texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts that FastAPI takes for a parameter of a kind."""
    validate = TypeAdapter(kind).validate_python
    for text in texts:
        try:
            validate(text)
        except ValidationError:
            continue
        yield text


def short(length: int) -> Iterator[str]:
    """Yield every text of a length."""
    return map("".join, product(SHORT, repeat=length))


def uuids(random: Random, count: int) -> Iterator[str]:
    """Yield texts that are nearly, or really, UUIDs."""
    for _ in range(count):
        text = UUID(int=random.getrandbits(128))
        spelt = random.choice([str(text), text.hex, str(text).upper(), text.urn, text.urn.upper(), f"{{{text}}}"])
        for _ in range(random.choice([0, 0, 1, 2])):
            at = random.randint(0, len(spelt))
            spelt = spelt[:at] + random.choice(["-", "{", "}", "urn:", "uuid:", " ", ""]) + spelt[at:]
        yield spelt


@pytest.mark.parametrize("length", [1, 2, 3])
async def test_a_number_counts_every_short_text_that_fastapi_takes_for_it(length: int) -> None:
    assert await uncounted(Rule("/f/{v:int}", PLENTY), [f"/f/{text}" for text in accepted(int, short(length))]) == []
    taken = [text for text in accepted(float, short(length)) if not text.lower().strip(" +-").startswith("_")]
    assert await uncounted(Rule("/f/{v:float}", PLENTY), [f"/f/{text}" for text in taken]) == []


async def test_a_float_counts_every_text_of_four_that_fastapi_takes_for_it() -> None:
    taken = [
        *accepted(float, short(4)),
        *accepted(float, ["_inf", "+_inf", "1.5E_+0", "_nan", "i_nf"]),
    ]
    assert len(taken) > 1_000
    assert await uncounted(Rule("/f/{v:float}", PLENTY), [f"/f/{text}" for text in taken]) == []


async def test_a_number_counts_what_fastapi_takes_for_it_between_blanks() -> None:
    blanks = [chr(code) for code in range(0x3001) if chr(code).isspace()]
    for kind, text in ((int, "5"), (float, "5.5"), (float, "nan"), (float, "-Infinity")):
        texts = [f"{blank}{text}{blank}" for blank in blanks]
        taken = [f"/f/{text}" for text in accepted(kind, texts)]
        assert await uncounted(Rule(f"/f/{{v:{kind.__name__}}}", PLENTY), taken) == []
        assert len(taken) > 5


async def test_a_uuid_counts_every_spelling_that_fastapi_takes_for_it() -> None:
    taken = [*accepted(UUID, uuids(Random(5), 2_000))]
    assert len(taken) > 500
    assert await uncounted(Rule("/f/{v:uuid}", PLENTY), [f"/f/{text}" for text in taken]) == []


FLOATS = ["1.5", "1e5", "nan", " 5", "5_0", "-Infinity", "1.5E_+0", "+_inf"]


@pytest.mark.parametrize("text", FLOATS)
async def test_fastapi_serves_a_float_once_where_its_limit_is_once_a_minute(text: str) -> None:
    app = FastAPI()

    @app.get("/f/{v}")
    def read(v: float) -> str:
        return "page"

    middleware = RateLimitMiddleware(app, rules=[Rule("/f/{v:float}", "1/minute")])
    assert [(await call(middleware, f"/f/{text}")).status for _ in range(2)] == [200, 429]
