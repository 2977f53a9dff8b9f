"""The scenario: clients send requests through the front while Redis is killed and restarted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx

from .app import AMOUNT
from .processes import BOUND_S, House, wait_until

ANN, BEN, CAT, DAN, PROBE = (f"203.0.113.{number}" for number in range(1, 6))


@dataclass(frozen=True)
class Answer:
    """One response.

    Attributes:
        status: The status.
        host: The host that admitted the request; empty if it was refused.
    """

    status: int
    host: str


class Visitors:
    """Sends requests from any client address.

    Args:
        house: The front and its hosts.
        client: The HTTP client.
    """

    def __init__(self, house: House, client: httpx.Client) -> None:
        self._house = house
        self._client = client

    def ask(self, address: str, url: str | None = None) -> Answer:
        """Send one request through the front, or directly to a host."""
        answer = self._client.get(url or self._house.url, headers={"X-Forwarded-For": address})
        return Answer(answer.status_code, answer.json()["host"] if answer.status_code == 200 else "")

    def storm(self, address: str, count: int, at_once: int = 1) -> list[Answer]:
        """Send many requests through the front."""
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(lambda _: self.ask(address), range(count)))

    def everywhere(self, address: str) -> str:
        """Send one request directly to each host; return the statuses."""
        return ", ".join(str(self.ask(address, host.url).status) for host in self._house.hosts)

    def ban(self, address: str) -> int:
        """Ban an address on the first host; return the status of the response."""
        return self._client.post(
            f"{self._house.hosts[0].url}/admin/bans",
            headers={"Authorization": f"Bearer {self._house.token}"},
            json={"target": address, "duration": "1h", "reason": "scanner"},
        ).status_code

    def all_count_in(self, where: str) -> bool:
        """Return whether all hosts count in `where`; a request to each makes it try Redis first."""
        for host in self._house.hosts:
            self.ask(PROBE, host.url)
        healths = (self._client.get(f"{host.url}/health").json() for host in self._house.hosts)
        return {health["counts"] for health in healths} == {where}


def visit(house: House) -> None:
    """Run the scenario, and print the results."""
    with httpx.Client(trust_env=False, timeout=BOUND_S) as client:
        visitors = Visitors(house, client)
        title(f"Two hosts, one limit: {AMOUNT} requests of a client in ten minutes.")
        answers = visitors.storm(ANN, 4 * AMOUNT, at_once=8)
        show(f"Ann sends {len(answers)}, 8 at a time", counted(answers))
        show("admitted by", ", ".join(sorted({answer.host for answer in answers if answer.host})))
        show("Ann claims another address in X-Forwarded-For", visitors.ask(f"198.51.100.1, {ANN}").status)

        title("A ban on one host applies on the other.")
        show("an operator bans Ben on host_a", visitors.ban(BEN))
        show("Ben sends one request to host_a and one to host_b", visitors.everywhere(BEN))

        title("Redis is killed: each host counts separately.")
        house.redis.kill()
        answers = visitors.storm(CAT, 3 * AMOUNT)
        show(f"Cat sends {len(answers)}", counted(answers))
        show("admitted by each host", by_host(answers))
        show("Ben sends one request to host_a and one to host_b", visitors.everywhere(BEN))
        report(house, "store_failed")

        title("Redis is back, and empty.")
        house.start_redis()
        wait_until(lambda: visitors.all_count_in("in Redis"), "all hosts count in Redis again")
        show(f"Cat has used up her limit, and sends {AMOUNT} more", counted(visitors.storm(CAT, AMOUNT)))
        show("Ben sends one request to host_a and one to host_b", visitors.everywhere(BEN))
        answers = visitors.storm(DAN, 2 * AMOUNT)
        show(f"Dan sends {len(answers)}", counted(answers))
        report(house, "store_recovered")


def title(text: str) -> None:
    """Print the heading of a part of the scenario."""
    print(f"\n{text}")


def show(what: str, outcome: object) -> None:
    """Print a step and its outcome."""
    print(f"  {what:<62} {outcome}", flush=True)


def counted(answers: list[Answer]) -> str:
    """Return how many requests passed, were refused and failed."""
    statuses = [answer.status for answer in answers]
    passed, refused = statuses.count(200), statuses.count(429)
    return f"{passed} passed, {refused} refused, {len(answers) - passed - refused} failed"


def by_host(answers: list[Answer]) -> str:
    """Return how many requests each host admitted."""
    hosts = [answer.host for answer in answers]
    return ", ".join(f"{name} {hosts.count(name)}" for name in sorted({*hosts} - {""}))


def report(house: House, kind: str) -> None:
    """Wait until each host has reported an event, and print its message."""
    for host in house.hosts:
        said = wait_until(
            lambda host=host: next((line for line in host.process.events if line.startswith(kind)), ""),
            f"{host.process.name} reports {kind}",
        )
        show(f"{host.process.name} reports", said.partition(",")[0])
