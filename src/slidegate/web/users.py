"""Counting who is logged in."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final
from uuid import UUID

from starlette.types import Scope

from ..limiter import Limiter

logger = logging.getLogger("slidegate")


class _User:
    """The authenticated user; see `user`."""

    identity = "user"

    def find(self, scope: Scope, limiter: Limiter, client_key: str) -> str:
        person = scope.get("user")
        if person is None:
            person = scope.get("state", {}).get("user")
        try:
            name = _name_of(person)
        except Exception:
            # A user object may ask a database; its failure is neither a way past the gate nor a 500.
            logger.exception("key `user`: the user cannot be named, so the client's address is counted")
            name = ""
        return limiter.key_for(f"user:{name}") if name else client_key

    def __repr__(self) -> str:
        return "user"


user: Final = _User()
"""Count each authenticated user: `request.user` as Starlette's `AuthenticationMiddleware` sets it (further out than the
gate), else ``request.state.user``. Nobody logged in: the client's address."""


def _name_of(person: object) -> str:
    """Return what tells one user from another; empty for nobody."""
    if person is None or getattr(person, "is_authenticated", True) is False:
        return ""
    if isinstance(person, (str, int, UUID)):
        return str(person)
    for attribute in ("identity", "id", "display_name", "username", "sub"):
        try:
            name = person.get(attribute) if isinstance(person, Mapping) else getattr(person, attribute, None)
        except NotImplementedError:  # what Starlette's own BaseUser does for what a subclass leaves out
            continue
        if name is not None and name != "":
            return str(name)
    return ""
