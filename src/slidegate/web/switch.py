"""What switches a middleware off: its option, or the environment."""

from __future__ import annotations

import os
from typing import Final

from ..core.errors import ConfigurationError, quoted

ENABLED_VARIABLE: Final = "SLIDEGATE_ENABLED"
"""The environment variable that switches every middleware off, and none on that its option switches off."""
_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("0", "false", "no", "off")


def setting_that_switches_off(enabled: object) -> str:
    """Return the setting that switches a middleware off; empty if none does.

    Args:
        enabled: The option of the middleware.

    Raises:
        ConfigurationError: The value of the environment variable is unknown.
    """
    text = os.environ.get(ENABLED_VARIABLE, "").strip().lower()
    if text and text not in _TRUE + _FALSE:
        raise ConfigurationError(f"expected one of {', '.join(_TRUE + _FALSE)}, not {quoted(text)}", ENABLED_VARIABLE)
    if not enabled:
        return "enabled=False"
    if text in _FALSE:
        return f"{ENABLED_VARIABLE}={text}"
    return ""
