"""How Redis is asked by a store with leases: a question that is repeated has units charged ahead."""

from __future__ import annotations

from ...core.decision import Decision
from .requests import AskedQuestion
from .script import Packed
from .several import several


class LeasingQuestion(AskedQuestion):
    """Equal hits that may have units charged ahead; a peek or a charge has none."""

    __slots__ = ("_is_lease",)

    def _pack_hits(self, hit: Packed) -> Packed:
        """See `AskedQuestion`."""
        leases, question = self.asker.parts.leases, self.question
        assert leases is not None, "only a store with leases has such hits"
        is_repeated = question.note_asked(self.sent_ns) or len(self.futures) > 1
        self._is_lease = is_repeated and question.is_joinable
        if not self._is_lease:
            return super()._pack_hits(hit)
        self.is_several = True
        return several(hit, len(self.awaiting()), leases.wanted(question, self.asker.refund))

    def _account(self, decision: Decision, admitted: int, left: int, lasts_us: int) -> None:
        """Keep the units that were charged ahead, and those of hits that nobody awaits any more."""
        if not self._is_lease:
            super()._account(decision, admitted, left, lasts_us)
            return
        leases = self.asker.parts.leases
        assert leases is not None, "only a store with leases has such hits"
        leases.grant(self.question, decision, self.sent_ns, lasts_us, admitted, left, self.asker.refund)
