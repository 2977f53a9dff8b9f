"""A bad week for a login, over HTTP: people who mistype, guessers of every kind, scanners, and an operator.

The store goes by a clock that the visit turns, so hours take no time. Clients of many addresses come through the visit
as through a proxy, which names them in X-Forwarded-For.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import httpx

from examples.serving import HOST, served, show, title
from slidegate import Limiter, MemoryStore
from slidegate.testing import FakeClock

from .accounts import Accounts
from .app import DEVICE, make_app

PASSWORD = "correct horse battery staple"
OPERATOR, SUPPORT = "an-operators-token-for-this-visit", "a-token-that-may-only-look"
SECRET = "the-key-with-which-devices-are-signed"
START_US = 1_774_000_000_000_000


class Visit:
    """One visit: its clock, and its client."""

    def __init__(self, clock: FakeClock, http: httpx.AsyncClient) -> None:
        self.clock = clock
        self.http = http

    async def log_in(self, address: str, password: str, name: str = "ann", device: str = "") -> httpx.Response:
        """Try a password from an address."""
        fields = {"X-Forwarded-For": address} | ({"Cookie": f"{DEVICE}={device}"} if device else {})
        answer = await self.http.post("/login", data={"name": name, "password": password}, headers=fields)
        self.http.cookies.clear()  # this one client stands for many devices
        return answer

    async def guess(self, addresses: Iterable[str], every: str, name: str = "") -> str:
        """Try a wrong password from one address after another; return the statuses in words.

        Args:
            addresses: Where each try comes from.
            every: The time between two of them.
            name: The account; by default another one each time.
        """
        seen = Counter[int]()
        for number, address in enumerate(addresses):
            seen[(await self.log_in(address, "a guess", name or f"{address}-{number}")).status_code] += 1
            self.clock.advance(every)
        return counted(seen)

    async def ask(self, address: str, *paths: str) -> str:
        """Ask for pages from an address; return the statuses in words."""
        fields = {"X-Forwarded-For": address}
        return counted(Counter([(await self.http.get(path, headers=fields)).status_code for path in paths]))

    async def operate(self, method: str, path: str, token: str = OPERATOR, **sent: object) -> httpx.Response:
        """Ask the admin API."""
        fields = {"Authorization": f"Bearer {token}"}
        return await self.http.request(method, f"/admin/{path}", headers=fields, **sent)  # type: ignore[arg-type]


def counted(statuses: Counter[int]) -> str:
    """Write statuses as ``5 x 401, 15 x 429``."""
    return ", ".join(f"{count} x {status}" for status, count in statuses.items())


async def visit() -> None:
    """Play the visit, and print what happens."""
    clock, accounts = FakeClock(START_US), Accounts()
    accounts.add("ann", PASSWORD)
    async with Limiter(MemoryStore(clock=clock)) as limiter:
        app = make_app(limiter, accounts, secret=SECRET, token=OPERATOR, read_token=SUPPORT, proxies=[HOST])
        async with served(app) as server, httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=60) as http:
            tour = Visit(clock, http)
            device = await honest(tour)
            await scanners(tour)
            await botnet(tour, device)
            await guessers(tour)
            await operators(tour)


async def honest(tour: Visit) -> str:
    """Mistype, and log in; return the cookie of the device."""
    title("ann mistypes her password, and gets it right")
    for typed in ("correct horse", "correct horse battery", PASSWORD):
        answer = await tour.log_in("192.0.2.7", typed)
        show(f"she types {typed!r}", f"{answer.status_code}: {answer.text.strip()}")
    again = [(await tour.log_in("192.0.2.7", PASSWORD)).status_code for _ in range(20)]
    show("she logs in 20 times within a minute", counted(Counter(again)))
    tour.clock.advance("1h")
    return answer.cookies[DEVICE]


async def botnet(tour: Visit, device: str) -> None:
    """Have the whole world guess one password."""
    title("a botnet: 60 addresses of 60 networks, all at ann's account")
    world = [f"100.{100 + number}.7.1" for number in range(28)] + [f"104.{number}.7.1" for number in range(32)]
    show("they try one password each, one every 20 s", await tour.guess(world, "20s", "ann"))
    known = await tour.log_in("192.0.2.7", PASSWORD, device=device)
    show("ann, from the device that she always has", f"{known.status_code}: {known.text.strip()}")
    elsewhere = await tour.log_in("192.0.2.200", PASSWORD)
    wait_s = int(elsewhere.headers["Retry-After"])
    show("ann, from a device that nobody knows", f"{elsewhere.status_code}, Retry-After: {wait_s} s")
    tour.clock.advance(f"{wait_s}s")
    show("and that much later", (await tour.log_in("192.0.2.200", PASSWORD)).status_code)


async def guessers(tour: Visit) -> None:
    """Guess passwords of many accounts, fast and slowly."""
    title("guessers, who try another account each time")
    show("one address, 20 passwords, one a second", await tour.guess(["203.0.113.9"] * 20, "1s"))
    show("it goes on, one every 13 s", await tour.guess(["203.0.113.9"] * 30, "13s"))
    farm = [f"198.51.100.{1 + number % 4}" for number in range(40)]
    show("4 addresses of one network, each one every 2 minutes", await tour.guess(farm, "30s"))
    show("a neighbour of theirs asks for a page", await tour.ask("198.51.100.99", "/"))
    show("somebody else does", await tour.ask("192.0.2.99", "/"))


async def scanners(tour: Visit) -> None:
    """Look for what is not there."""
    title("scanners")
    show("a visitor follows a dead link or two", await tour.ask("192.0.2.99", "/old", "/older", "/"))
    honeypots = ("/.env", "/.git/config", "/wp-login.php", "/xmlrpc.php", "/", "/")
    show("one address asks for 4 things that no site of ours has", await tour.ask("203.0.114.1", *honeypots))
    show("a neighbour asks for a file of credentials", await tour.ask("203.0.114.2", "/.aws/credentials"))
    show("another neighbour, who has done nothing", await tour.ask("203.0.114.77", "/"))
    tour.clock.advance("70m")
    show("an hour later the first one comes back", await tour.ask("203.0.114.1", "/"))
    show("and asks again", await tour.ask("203.0.114.1", *honeypots))


async def operators(tour: Visit) -> None:
    """Look at the bans, and lift one."""
    title("an operator looks at the bans that are in force")
    page = (await tour.operate("GET", "bans")).json()
    for ban in page["bans"]:
        minutes = round((ban["until_at"] - ban["since_at"]) / 60)
        show(f"{ban['target']} by {ban['policy']!r}", f"{minutes} min, level {ban['level']}")
    target = page["bans"][0]["target"]
    show("the support desk lifts one", (await tour.operate("DELETE", f"bans?target={target}", SUPPORT)).status_code)
    show("the operator does", (await tour.operate("DELETE", f"bans?target={target}")).status_code)
    show("a client from there now", await tour.ask("198.51.100.99", "/"))
    show("the admin API without a token", (await tour.http.get("/admin/bans")).status_code)
    show("the page of the dashboard without a token", (await tour.http.get("/dashboard/")).status_code)
    show("its figures without a token", (await tour.http.get("/dashboard/api/now")).status_code)
