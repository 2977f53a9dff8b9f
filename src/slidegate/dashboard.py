"""A dashboard of a limiter, to mount in an application. Requires the extra `slidegate[dashboard]`."""

from __future__ import annotations

try:
    from .ops.dashboard.app import Dashboard
except ModuleNotFoundError as error:
    raise ImportError(f'Dashboard needs the package {error.name}: pip install "slidegate[dashboard]"') from error

__all__ = ["Dashboard"]
