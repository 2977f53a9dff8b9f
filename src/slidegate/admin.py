"""Operators use the admin API of a limiter as JSON over HTTP. It needs the extra `slidegate[dashboard]`."""

from __future__ import annotations

from .ops.access.visitors import Visitor
from .ops.admin.admin_routes import AdminRoutes

__all__ = ["AdminRoutes", "Visitor"]
