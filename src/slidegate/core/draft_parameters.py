"""The names of the parameters of RateLimit and RateLimit-Policy, as draft-ietf-httpapi-ratelimit-headers-11 has them.

It is a draft, and another one may name them otherwise: nothing else in the package writes these names.
"""

from __future__ import annotations

from typing import Final

AMOUNT: Final = "q"
WINDOW_S: Final = "w"
UNIT: Final = "qu"
REMAINING: Final = "r"
MORE_AFTER_S: Final = "t"
