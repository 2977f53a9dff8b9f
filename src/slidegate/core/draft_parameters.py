"""The parameter names of RateLimit and RateLimit-Policy in draft-ietf-httpapi-ratelimit-headers-11.

A later draft may rename them, so the rest of the package uses these constants.
"""

from __future__ import annotations

from typing import Final

AMOUNT: Final = "q"
WINDOW_S: Final = "w"
UNIT: Final = "qu"
REMAINING: Final = "r"
MORE_AFTER_S: Final = "t"
