"""The visit: clients come through the front while Redis is killed and comes back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx

from .app import AMOUNT
from .processes import BOUND_S, House, wait_until

ANN, BEN, CAT, DAN, PROBE = (f"203.0.113.{number}" for number in range(1, 6))


@dataclass(frozen=True)
class Answer:
    """One answer.

    Attributes:
        status: Its status.
        host: The host that let the request pass; empty where it was refused.
    """

    status: int
    host: str


class Visitors:
    """Clients of every address.

    Args:
        house: What they visit.
        client: Sends requests.
    """

    def __init__(self, house: House, client: httpx.Client) -> None:
        self._house = house
        self._client = client

    def ask(self, address: str, url: str | None = None) -> Answer:
        """Send one request through the front, or to one host."""
        answer = self._client.get(url or self._house.url, headers={"X-Forwarded-For": address})
        return Answer(answer.status_code, answer.json()["host"] if answer.status_code == 200 else "")

    def storm(self, address: str, count: int, at_once: int = 1) -> list[Answer]:
        """Send many requests through the front."""
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(lambda _: self.ask(address), range(count)))

    def everywhere(self, address: str) -> str:
        """Send one request to each host, past the front; return the statuses."""
        return ", ".join(str(self.ask(address, host.url).status) for host in self._house.hosts)

    def ban(self, address: str) -> int:
        """Ban an address on the first host; return the status of the answer."""
        return self._client.post(
            f"{self._house.hosts[0].url}/admin/bans",
            headers={"Authorization": f"Bearer {self._house.token}"},
            json={"target": address, "duration": "1h", "reason": "scanner"},
        ).status_code

    def all_count_in(self, where: str) -> bool:
        """Tell whether all hosts count in Redis, or in their own processes; a request makes each find out."""
        for host in self._house.hosts:
            self.ask(PROBE, host.url)
        healths = (self._client.get(f"{host.url}/health").json() for host in self._house.hosts)
        return {health["counts"] for health in healths} == {where}


def visit(house: House) -> None:
    """Play the visit, and print what happens."""
    with httpx.Client(trust_env=False, timeout=BOUND_S) as client:
        visitors = Visitors(house, client)
        title(f"Two hosts, one limit: {AMOUNT} requests of a client in ten minutes.")
        answers = visitors.storm(ANN, 4 * AMOUNT, at_once=8)
        show(f"Ann sends {len(answers)}, 8 at a time", counted(answers))
        show("they were let pass by", ", ".join(sorted({answer.host for answer in answers if answer.host})))
        show("she says that she is somebody else", visitors.ask(f"198.51.100.1, {ANN}").status)

        title("A ban on one host is known on the other.")
        show("an operator bans Ben on host_a", visitors.ban(BEN))
        show("Ben asks host_a and host_b", visitors.everywhere(BEN))

        title("Redis is killed: each host counts for itself.")
        house.redis.kill()
        answers = visitors.storm(CAT, 3 * AMOUNT)
        show(f"Cat sends {len(answers)}", counted(answers))
        show("of these, each host lets pass", by_host(answers))
        show("Ben asks host_a and host_b", visitors.everywhere(BEN))
        tell(house, "store_failed")

        title("Redis is back, and empty.")
        house.start_redis()
        wait_until(lambda: visitors.all_count_in("in Redis"), "all hosts count in Redis again")
        show(f"Cat has had her share, and sends {AMOUNT} more", counted(visitors.storm(CAT, AMOUNT)))
        show("Ben asks host_a and host_b", visitors.everywhere(BEN))
        answers = visitors.storm(DAN, 2 * AMOUNT)
        show(f"Dan sends {len(answers)}", counted(answers))
        tell(house, "store_recovered")


def title(text: str) -> None:
    """Print the heading of a part of the visit."""
    print(f"\n{text}")


def show(what: str, outcome: object) -> None:
    """Print one event of the visit and what came of it."""
    print(f"  {what:<62} {outcome}", flush=True)


def counted(answers: list[Answer]) -> str:
    """Say how many requests passed and how many did not."""
    statuses = [answer.status for answer in answers]
    passed, refused = statuses.count(200), statuses.count(429)
    return f"{passed} passed, {refused} refused, {len(answers) - passed - refused} failed"


def by_host(answers: list[Answer]) -> str:
    """Say how many requests each host let pass."""
    hosts = [answer.host for answer in answers]
    return ", ".join(f"{name} {hosts.count(name)}" for name in sorted({*hosts} - {""}))


def tell(house: House, kind: str) -> None:
    """Wait until each host has told of an event, and print what it said."""
    for host in house.hosts:
        said = wait_until(
            lambda host=host: next((line for line in host.process.events if line.startswith(kind)), ""),
            f"{host.process.name} tells of {kind}",
        )
        show(f"{host.process.name} tells of", said.partition(",")[0])
