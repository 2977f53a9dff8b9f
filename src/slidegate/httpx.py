"""Keeps limits towards other people's APIs: a transport for httpx. It needs the extra `slidegate[httpx]`."""

from __future__ import annotations

try:
    from .outbound.transport import LimitedTransport
    from .outbound.turns import TurnTimeout
except ModuleNotFoundError as error:
    raise ImportError(f'LimitedTransport needs the package {error.name}: pip install "slidegate[httpx]"') from error

__all__ = ["LimitedTransport", "TurnTimeout"]
