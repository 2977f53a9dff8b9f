"""The site in processes of its own, and requests to it with any client address."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from ..redis_servers import until
from ..workers import ask, serving


@dataclass
class Site:
    url: str

    @property
    def dashboard(self) -> str:
        return f"{self.url}/slidegate/"

    def ask(self, client: str, path: str = "/", **fields: str) -> int:
        """Send one request over a new connection; return the status, 0 without a response."""
        answer = ask(self.url + path, **{"X-Forwarded-For": client, **fields})
        return 0 if answer is None else answer.status_code

    def flood(self, client: str, requests: int, path: str = "/", **fields: str) -> list[int]:
        """Send requests, a few at a time, each over a new connection; return their statuses."""
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(lambda _: self.ask(client, path, **fields), range(requests)))


@contextmanager
def served(store: str = "memory://", workers: int = 1, sites: int = 1) -> Iterator[list[Site]]:
    """Serve the site by several servers with several workers each, on one store."""
    with ExitStack() as stack:
        started = [Site(stack.enter_context(serving("tests.browser.site", store, workers))) for _ in range(sites)]
        for site in started:
            until(lambda site=site: site.ask("192.0.2.1", "/slidegate/") == 401, "the server answers")
        yield started
