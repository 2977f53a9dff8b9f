"""A page that shows a limiter at work, to mount in an application. It needs the extra `slidegate[dashboard]`."""

from __future__ import annotations

try:
    from .admin.dashboard import Dashboard
except ModuleNotFoundError as error:
    raise ImportError(f'Dashboard needs the package {error.name}: pip install "slidegate[dashboard]"') from error

__all__ = ["Dashboard"]
