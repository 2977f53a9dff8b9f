"""Start-up findings: each kind has a code that never changes, and a heading in the documentation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from ...core.errors import ConfigurationError, closest

CODES: Final = {
    "SG101": "most addresses are trusted proxies",
    "SG102": "a proxy's header comes in, and no proxy is trusted",
    "SG103": "several processes, each with a memory of its own",
    "SG104": "a rule can never apply",
    "SG105": "one named rule stands in two middlewares",
    "SG106": "two clocks on the way of one request",
    "SG107": "browsers will not see the 429",
    "SG108": "one customer is many clients",
    "SG109": "the server names no peer",
    "SG110": "slidegate is switched off",
    "SG111": "bans meet the proxy, not its clients",
    "SG112": "a honeypot does not work",
    "SG113": "a banned client can come back under another value",
    "SG114": "a list holds a network that nobody has",
    "SG115": "the store forgets what it counts",
    "SG116": "the user is known too late",
    "SG117": "the routes cannot be seen",
    "SG118": "an exemption exempts from nothing",
    "SG119": "a rule blocks every request",
    "SG120": "a few websockets can hold everybody's places",
    "SG121": "a limited function is not awaited",
    "SG122": "rules count the dashboard or the admin API",
}
"""Every code, with its subject."""


class Finding(NamedTuple):
    """A setting that works, but probably not as it is meant.

    Attributes:
        code: Its kind, for example ``"SG103"``; give it to `silence` to turn the finding off.
        message: The probable mistake, and the way out.
    """

    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


def check_silence(silence: Iterable[str]) -> frozenset[str]:
    """Return the codes of findings that are not reported.

    Raises:
        ConfigurationError: There is no such code.
    """
    example = 'expected a list of codes such as ["SG103"]'
    if isinstance(silence, str) or not isinstance(silence, Iterable):
        raise ConfigurationError(f"silence: {example}, not {silence!r}")
    codes = list(silence)
    for code in codes:
        if not isinstance(code, str):
            raise ConfigurationError(f"silence: {example}, not {code!r} in it")
        if code not in CODES:
            raise ConfigurationError(f"silence: unknown code {code!r}{closest(code.upper().replace('O', '0'), CODES)}")
    return frozenset(codes)
