"""What users hold: a store, and the words to talk to it."""

from __future__ import annotations

from .keys import MAX_KEY_BYTES
from .limiter import Limiter, check_cost

__all__ = ["MAX_KEY_BYTES", "Limiter", "check_cost"]
