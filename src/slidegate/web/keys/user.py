"""The key that counts logged-in users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from starlette.types import Scope

from ...core.logs import logger
from ...limiter import Limiter
from ...limiter.keys import KeyOf
from ..request import RequestLimits
from ..scope_keys import RECORD
from .key import invalid


class _User:
    """The authenticated user; see `user`."""

    identity = "user"

    def find(self, scope: Scope, limiter: Limiter, client_key: str) -> str:
        try:
            name = _name_of(_person(scope))
        except Exception:
            # A user object may ask a database; its failure is neither a way past the gate nor a 500.
            logger.exception("key `user`: the user cannot be named, so the client's address is counted")
            name = ""
        if name:
            return limiter.key_for(f"user:{name}")
        request: RequestLimits | None = scope.get(RECORD)
        if request is not None:
            request.userless = True
        return client_key

    def of(self, name: str | bytes | int | UUID) -> KeyOf:
        """Return the key of a user, for the methods of a limiter: ``limiter.reset(user.of("ann"))``.

        Args:
            name: The user's name or id, as the gate finds it in a request.

        Raises:
            InvalidKey: It is empty, or no name.
        """
        text = "" if isinstance(name, bytes) else _name_of(name)
        if not text:
            raise invalid("user", 'a name or id, for example "ann"', name)
        return KeyOf("user", lambda keys: keys.learn(f"user:{text}")[0])

    def __repr__(self) -> str:
        return "user"


user: Final = _User()
"""Count each authenticated user: `request.user` as Starlette's `AuthenticationMiddleware` sets it (further out than the
gate), else ``request.state.user``, which at an endpoint of FastAPI may be set by a dependency. Without a user, the
client's address counts."""


def is_known(scope: Scope) -> bool:
    """Return whether the user of a request is known by now."""
    try:
        return _name_of(_person(scope)) != ""
    except Exception:
        return False


def _person(scope: Scope) -> object:
    person = scope.get("user")
    return scope.get("state", {}).get("user") if person is None else person


def _name_of(person: object) -> str:
    """Return the name or id of a user; empty if nobody is logged in."""
    if person is None or getattr(person, "is_authenticated", True) is False:
        return ""
    if isinstance(person, (str, int, UUID)):
        return str(person)
    for attribute in ("identity", "id", "display_name", "username", "sub"):
        try:
            name = person.get(attribute) if isinstance(person, Mapping) else getattr(person, attribute, None)
        except NotImplementedError:  # Starlette's BaseUser raises this for a property that its subclass leaves out
            continue
        if name is not None and name != "":
            return str(name)
    return ""
