"""Who may pass: the order of judgement, in one place.

Allowlist, blocklist, then every rule that matches, in one question to the limiter.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Final

from starlette.types import Scope

from ..core.decision import Bucket, Decision, Reason
from ..core.networks import Networks
from ..limiter import Limiter
from .calls import Calls
from .gates import RuleSet, Selection
from .proxies import ClientAddress
from .responses import tightest

RECORD: Final = "slidegate"
"""The key of a request's `Record` in its ASGI scope."""

_BLOCKED: Final = Decision(False, Reason.BLOCKED)
_ALLOWLISTED: Final = Decision(True, Reason.ALLOWLISTED)
_EXEMPT: Final = Decision(True, Reason.EXEMPT)


class Record(list[Decision]):
    """What the gates on the way of one request decided, the outermost first."""

    __slots__ = ()

    @property
    def decision(self) -> Decision:
        """The decision that matters most: a refusal, else the one with the least left."""
        return tightest(self)


class Judge:
    """Decides about requests.

    Args:
        limiter: Where the counts live.
        client: How the client's address is found.
        rules: What applies to which request.
        blocklist: Networks refused before anything is counted.
        allowlist: Networks let through before anything is counted.
        preflight: What CORS preflights are counted in, if they are.
        calls: Calls the functions of the user's.
    """

    def __init__(
        self,
        limiter: Limiter,
        client: ClientAddress,
        rules: RuleSet,
        *,
        blocklist: Networks | None,
        allowlist: Networks | None,
        preflight: Bucket | None,
        calls: Calls,
    ) -> None:
        self.limiter = limiter
        self.rules = rules
        self._client = client
        self._blocklist = blocklist
        self._allowlist = allowlist
        self._preflight = preflight
        self._calls = calls

    def decide(self, scope: Scope, before: Sequence[Decision]) -> Decision | Awaitable[Decision]:
        """Decide about a request, given what gates further out decided."""
        client_key, address = self._client.locate(scope)
        if before and before[0].reason is Reason.ALLOWLISTED:
            return before[0]
        if address is not None:
            if self._allowlist is not None and self._allowlist.covers(*address):
                return _ALLOWLISTED
            if self._blocklist is not None and self._blocklist.covers(*address):
                return _BLOCKED
        if scope.get("method") == "OPTIONS" and is_preflight(scope):
            return _EXEMPT if self._preflight is None else self.limiter.decide(((self._preflight, client_key, 1),))
        selection = self.rules.select(scope)
        if before:
            selection = _without(selection, before)
        if not selection.gates:
            return _EXEMPT
        if not selection.plain:
            return self._ask(selection, scope, client_key)
        return self.limiter.decide([gate.check(scope, self.limiter, client_key) for gate in selection.gates])

    async def _ask(self, selection: Selection, scope: Scope, client_key: str) -> Decision:
        """Decide with the help of functions of the user's."""
        checks = [await self._calls.check(gate, scope, self.limiter, client_key) for gate in selection.gates]
        counted = [check for check in checks if check is not None]
        return await self.limiter.hit_all(counted) if counted else _EXEMPT


def is_preflight(scope: Scope) -> bool:
    """Tell whether an OPTIONS request is a CORS preflight (Fetch standard, section 3.2.2)."""
    names = {name for name, _ in scope["headers"]}
    return b"origin" in names and b"access-control-request-method" in names


def _without(selection: Selection, before: Sequence[Decision]) -> Selection:
    """Leave out the named rules that a gate further out has charged."""
    charged = {bucket.rule for decision in before for bucket, _, _ in decision.checks}
    gates = tuple(gate for gate in selection.gates if gate.rule.name is None or gate.rule.name not in charged)
    return selection if len(gates) == len(selection.gates) else Selection(gates, all(gate.plain for gate in gates))
