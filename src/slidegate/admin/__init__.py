"""The admin API of a limiter: JSON over HTTP. Requires the extra `slidegate[dashboard]`."""

from __future__ import annotations

try:
    from .api import AdminRoutes
    from .auth import User
except ModuleNotFoundError as error:
    raise ImportError(f'slidegate.admin needs the package {error.name}: pip install "slidegate[dashboard]"') from error

__all__ = ["AdminRoutes", "User"]
