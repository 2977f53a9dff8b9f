"""Why a request was let through or refused."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Why a request was let through or refused."""

    OK = "ok"
    """Every limit had room."""
    WAITED = "waited"
    """Let through after a wait for room."""
    LIMITED = "limited"
    """A limit had no room; `Decision.retry_after` says when it will."""
    TOO_LARGE = "too_large"
    """The cost is larger than a limit: it can never pass."""
    BANNED = "banned"
    """A ban is in force; `Decision.ban` says which."""
    BLOCKED = "blocked"
    """The client's address is on the blocklist, or a rule blocks the request; `Decision.by` says which."""
    NOBODY = "nobody"
    """The limits function of a rule says that nobody may pass; nothing was counted."""
    ALLOWLISTED = "allowlisted"
    """The client's address is on the allowlist; nothing was counted."""
    EXEMPT = "exempt"
    """No limit applies to this request; nothing was counted."""
    UNAVAILABLE = "unavailable"
    """The store did not answer, and `on_error` says "allow" or "deny"; nothing was counted."""
