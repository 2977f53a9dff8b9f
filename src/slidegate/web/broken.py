"""A gate that cannot be made ends the start of the server.

`add_middleware` only records a class and its options. The application makes its middleware when the server calls
it for the first time, and with most servers that call is the lifespan. An exception in it tells a server that the
application knows no lifespan: it goes on without, and answers 500 to everything. So where a constructor fails

* while an application makes its middleware in a lifespan, the object that it was about to make becomes a `BrokenGate`,
  which answers ``lifespan.startup.failed``. Every server ends its start then, and shows the message;
* anywhere else, the constructor raises.

Nobody tells a constructor who called it. So after it failed, the calls under way are looked through from the inside:
the first one with an ASGI ``scope`` says what the application was called for. The code of the application's own
lifespan is called by a router of Starlette's, and hears its exceptions itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, MutableMapping
from functools import wraps
from types import CodeType, FrameType
from typing import Any, NoReturn, ParamSpec

from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from ..core.errors import ConfigurationError

_P = ParamSpec("_P")


class BrokenGate:
    """Stands where a gate could not be made, and lets nothing pass.

    Attributes:
        error: Why the gate could not be made.
    """

    error: Exception

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """End the start of a server, and raise the error for everything else."""
        await end_start(self.error, scope, receive, send)


class Breakable:
    """A class of gates whose objects become a `BrokenGate` where they cannot be made during the start of a server.

    The outermost constructor decides: where a class of the user's, or another gate, is being made around a gate, the
    gate raises, and the outer object becomes a `BrokenGate`.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            setattr(cls, "__init__", _breakable(vars(cls)["__init__"]))  # noqa: B010 - mypy refuses the assignment


async def end_start(error: Exception, scope: Scope, receive: Receive, send: Send) -> NoReturn:
    """Raise an error; tell it to the server first, if the server asks for the start."""
    if scope["type"] == "lifespan":
        await receive()
        shown = str(error) if isinstance(error, ConfigurationError) else f"{type(error).__name__}: {error}"
        await send({"type": "lifespan.startup.failed", "message": shown})
    raise error.with_traceback(None)  # or each request would make it longer


def _breakable(init: Callable[_P, None]) -> Callable[_P, None]:
    @wraps(init)
    def made(*args: _P.args, **options: _P.kwargs) -> None:
        try:
            init(*args, **options)
        except Exception as error:
            here = sys._getframe()
            if not _is_start(here.f_back, here.f_code):
                raise
            _break(args[0], error)

    return made


def _break(gate: Any, error: Exception) -> None:
    try:
        gate.__class__ = BrokenGate
    except TypeError:  # a class with slots, for example
        raise error from None
    vars(gate).clear()
    gate.error = error


def _is_start(frame: FrameType | None, making: CodeType) -> bool:
    """Tell whether an application makes its middleware in a lifespan, and no other gate is being made around this.

    Args:
        frame: The call that makes a gate.
        making: The code that runs in the constructors of all gates.
    """
    while frame is not None:
        if frame.f_code is making:
            return False
        known = frame.f_locals
        scope = known.get("scope")
        if isinstance(scope, MutableMapping) and "type" in scope:
            return scope["type"] == "lifespan" and not isinstance(known.get("self"), Router)
        frame = frame.f_back
    return False
