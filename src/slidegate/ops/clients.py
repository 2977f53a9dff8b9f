"""The traffic of each client: counted many at a time, and named when a row is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter, itemgetter
from typing import Final, TypeAlias

from ..core import Bucket, Check
from ..events import Passed
from .encoding import decoded, encoded, known_fields, named_fields
from .traffic import ClientTraffic, Ranking, add_to

MAX_CLIENTS: Final = 1_000
"""With more clients, those with the fewest requests and refusals are forgotten."""
TOP_CLIENTS: Final = 100
"""How many of the busiest clients, and how many of those that are refused most, are in a row."""
Met: TypeAlias = tuple[tuple[Bucket, ...], str]
"""The buckets that counted an ordinary request, and its route."""
_FIELDS: Final = tuple(one.name for one in fields(ClientTraffic))


@dataclass(slots=True)
class Client(ClientTraffic):
    """A client with what has no names yet: these are found for those alone that are in a row.

    Attributes:
        latest: Its latest ordinary request.
        met: Its ordinary requests by what counted them.
    """

    latest: Passed | None = None
    met: dict[Met, int] = field(default_factory=dict)

    def add(self, other: ClientTraffic) -> None:
        """See `ClientTraffic.add`."""
        ClientTraffic.add(self, other)
        if isinstance(other, Client):
            self.latest = other.latest or self.latest
            for met, requests in other.met.items():
                self.met[met] = self.met.get(met, 0) + requests

    def described(self) -> ClientTraffic:
        """Return its counts with all names."""
        shown = ClientTraffic(self.key)
        ClientTraffic.add(shown, self)
        # The most frequent first, because few names are kept.
        for (buckets, route), requests in sorted(self.met.items(), key=itemgetter(1), reverse=True):
            labels = dict.fromkeys([bucket.label for bucket in buckets])
            for label in labels:
                add_to(shown.counted_by, label, requests)
            add_to(shown.routes, route, requests)
        if self.latest is not None:
            _, checks, route, _ = self.latest
            shown.note_amounts(checks)
            # A refusal has named what it met when it was counted.
            if not self.refused:
                shown.route = route
                shown.rule, shown.limits = _counted(self.key, checks)
        return shown


class Clients(dict[str, Client]):
    """The traffic of each client; or of each key of another kind."""

    def of(self, key: str) -> Client:
        """Return the traffic of a client, which is added if it is missing."""
        return self.get(key) or self.setdefault(key, Client(key))

    def added_to(self, before: Clients | None) -> Clients:
        """See `Slice.added_to`."""
        together = Clients()
        if before is not None:
            together.add(before)
        together.add(self)
        together.forget_rare()
        return together

    def add(self, others: Clients) -> None:
        """Add the counts of clients."""
        for key, client in others.items():
            self.of(key).add(client)

    def forget_rare(self) -> None:
        """If there are too many, forget those that are neither among the busiest nor among the most refused."""
        if len(self) <= MAX_CLIENTS:
            return
        kept = {one.key: one for one in self._leading(MAX_CLIENTS // 4)}
        self.clear()
        self.update(kept)

    def _leading(self, most: int) -> list[Client]:
        """Return the busiest and those that are refused most, each once."""
        busiest, refused = self._ranked(most)
        found = {one.key: one for one in [*busiest, *refused]}
        return [*found.values()]

    def _ranked(self, most: int) -> tuple[list[Client], list[Client]]:
        """Return the busiest, and those that are refused most."""
        # Sorting is faster than `nlargest` for so many.
        busiest = sorted(self.values(), key=attrgetter("requests"), reverse=True)
        refused = [one for one in self.values() if one.refused]
        refused.sort(key=attrgetter("refused"), reverse=True)
        return busiest[:most], refused[:most]

    def ranking(self, most: int) -> Ranking:
        """Return the busiest and those that are refused most."""
        busiest, refused = self._ranked(most)
        return Ranking([one.described() for one in busiest], [one.described() for one in refused])

    def packed(self) -> bytes:
        """Return the row of a slice."""
        described = [one.described() for one in self._leading(TOP_CLIENTS)]
        return encoded([named_fields(one, _FIELDS) for one in described])

    def add_row(self, row: bytes) -> None:
        """Add what is in the row of a slice."""
        for line in decoded(row):
            one = ClientTraffic(**known_fields(line, _FIELDS))
            self.of(one.key).add(one)


def _counted(key: str, checks: Sequence[Check]) -> tuple[str, str]:
    """Return the rule that counted a request by a key, and its limits; else the first rule that counted it."""
    if not checks:
        return "", ""
    counting, _, _ = checks[0]
    for bucket, counted_key, _ in checks:
        if counted_key == key:
            counting = bucket
            break
    return counting.label, text_of(counting)


def text_of(bucket: Bucket) -> str:
    """Return the limits of a bucket, with the amounts that are in force."""
    return "; ".join(map(str, bucket.limits))
