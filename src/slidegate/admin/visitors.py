"""The visitors of an operators' tool, and their roles."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from starlette.requests import Request
from starlette.types import Scope

from ..core.errors import ConfigurationError, quoted
from ..core.logs import escaped

Role: TypeAlias = Literal["read", "full"]
"""``"read"`` may look; ``"full"`` may also change."""

VISITOR: Final = "slidegate.visitor"
"""The key of a `Visitor` in the ASGI scope of a request that the door has let in."""
MOST_OF_A_NAME: Final = 64


class Visitor(NamedTuple):
    """Somebody whom the door lets in.

    Attributes:
        role: ``"read"`` or ``"full"``.
        name: The name under which changes are recorded, at most 64 printable characters.
    """

    role: Role
    name: str = ""


AuthAnswer: TypeAlias = Visitor | Role | None
AuthFunction: TypeAlias = Callable[[Request], AuthAnswer | Awaitable[AuthAnswer]]
"""Says who sends a request, which has no body here: None for a stranger."""


def visitor_of(scope: Scope) -> Visitor:
    """Return the visitor who sends a request behind the door.

    Raises:
        KeyError: The request did not come through a door.
    """
    found: Visitor = scope[VISITOR]
    return found


def read_visitor(answer: Any) -> Visitor | None:
    """Return the visitor whom an `auth` function names.

    Raises:
        ConfigurationError: It returned something else than None, a role or a `Visitor`.
    """
    if answer is None:
        return None
    role, name = answer if isinstance(answer, Visitor) else (answer, "")
    if role not in ("read", "full") or not isinstance(name, str):
        raise ConfigurationError(f'auth: expected None, "read", "full" or Visitor("full", "ann"), not {quoted(answer)}')
    return Visitor(role, escaped(name, MOST_OF_A_NAME))
