"""Operators use the admin API of a limiter as JSON over HTTP. It needs the extra `slidegate[dashboard]`."""

from __future__ import annotations

from .api import AdminRoutes
from .auth import User

__all__ = ["AdminRoutes", "User"]
