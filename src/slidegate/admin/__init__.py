"""Operators use the admin API of a limiter as JSON over HTTP. It needs the extra `slidegate[dashboard]`."""

from __future__ import annotations

from .admin_routes import AdminRoutes
from .visitors import Visitor

__all__ = ["AdminRoutes", "Visitor"]
