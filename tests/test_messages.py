"""What cannot work is refused where it is written: messages.txt has each message whole, as its user reads it."""

import ast
import asyncio
import os
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from importlib import import_module
from inspect import signature
from pathlib import Path

import pytest
from starlette.requests import Request

import slidegate
from slidegate import ConfigurationError, Limiter, MemoryStore

WHERE = (
    "core core.addresses core.bans.ban core.bans.rows events ops.replay.logs ops.statistics testing windows dashboard "
)
WHERE += "httpx otel prometheus"
MODULES = [*(import_module(f"slidegate.{name}") for name in WHERE.split()), slidegate]
NAMED = [(name, getattr(module, name)) for module in MODULES for name in dir(module)]
PUBLIC = {name: one for name, one in NAMED if callable(one) and not name.startswith("_")}
"""What messages may name, and a few functions behind it."""
ROOT = Path(__file__).parents[1]
TOKEN = "token-for-tests-0123456789abcdef"
NAMES = {
    **PUBLIC,
    "datetime": datetime,
    "timedelta": timedelta,
    "ast": ast,
    "os": os,
    "Request": Request,
    "TOKEN": TOKEN,
    "run": asyncio.run,
    "sleep": asyncio.sleep,
    "HEADER": '{"slidegate": "bans", "version": 4}',
    "HEAD": {"slidegate": "bans", "version": 4},
    "httpx2": import_module("slidegate.httpx2"),
    "ROW": {"key": "user:eve", "reason": "", "by": "ann", "level": 0, "since_us": 0, "until_us": None},
}
WORDS = "expected|example|name each|write|did you mean|use |keep|needs|shorter|unknown|is no|cannot be|there are no|"
WORDS += "create it|has only|give |remove|call it|do not|has no|could never|must be|cannot read"


def message_of(expression: str, names: Mapping[str, object] = NAMES) -> str:
    """Return the message of the error that an expression raises."""
    with pytest.raises(ConfigurationError) as caught:
        eval(expression, dict(names))
    assert isinstance(caught.value, ValueError)
    message = re.sub(r" at 0x\w+", "", str(caught.value))
    assert len(message) < 500
    assert "\n" not in message
    assert re.search(WORDS, message.lower()), "it says what to do"
    return message


def test_each_value_that_cannot_work_is_refused_with_what_would(texts: Callable[..., None]) -> None:
    texts(Path(__file__).with_name("messages.txt"), ">>> ", message_of)


CALL = re.compile(rf"(?<![\w.`@])(?:{'|'.join(PUBLIC)})(?:\.\w+)?\(")
GIVEN = {**NAMES, "UTC": UTC, "app": print, "limiter": Limiter(), "store": MemoryStore(), "function": print}
LEFT_OUT = {"RateLimitMiddleware(..., ": "RateLimitMiddleware(app, ", "RateLimit(..., ": 'RateLimit("5/minute", '}


def texts_of(tree: ast.AST) -> Iterator[str]:
    """Yield the texts of a module, docstrings aside, without what the values of f-strings put into them."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(one.value) if isinstance(one, ast.Constant) else "\0" for one in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def calls_in(text: str) -> Iterator[str]:
    """Yield the complete calls of public names in a text."""
    for found in CALL.finditer(text):
        ends = [at for at, character in enumerate(text, start=1) if character == ")" and at > found.end()]
        calls = [text[found.start() : end] for end in ends]
        yield from [call for call in calls if call.count("(") == call.count(")") and "\0" not in call][:1]


def works(call: str) -> bool:
    """Return whether a call makes something, or would where its file is, and what is imported for it."""
    for left_out, put_in in LEFT_OUT.items():
        call = call.replace(left_out, put_in)
    try:
        return "..." in call or eval(call, dict(GIVEN)) is not None
    except (ConfigurationError, NameError) as error:
        return re.search("cannot read|does not exist|is not defined|needs the package", str(error)) is not None


def test_the_calls_that_messages_propose_can_be_written() -> None:
    texts = [text for file in (ROOT / "src").rglob("*.py") for text in texts_of(ast.parse(file.read_text("utf-8")))]
    proposed = {call for text in texts for call in calls_in(text)}
    assert len(proposed) > 30
    assert [call for call in proposed if not works(call)] == []


WITH_OPTIONS = {
    one.__name__: {*signature(one).parameters}
    for one in (slidegate.Rule, slidegate.RateLimitMiddleware, Limiter, slidegate.BanPolicy, slidegate.MessageLimits)
}


@pytest.mark.parametrize("kind", [*WITH_OPTIONS, "RateLimit"])
def test_an_option_of_another_class_is_refused_with_the_class_to_write_it_at(kind: str) -> None:
    own = WITH_OPTIONS.get(kind, WITH_OPTIONS["Rule"])
    for option in sorted(set().union(*WITH_OPTIONS.values()) - own):
        message = message_of(f"{kind}({option}=None)")
        having = [name for name, options in WITH_OPTIONS.items() if option in options]
        assert any(name in message.partition("write ")[2] for name in having), message
