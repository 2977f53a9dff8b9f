"""``python3 dev.py example several_hosts``: runs a scenario on two hosts behind a front, then serves until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from .processes import House, NotStarted, find_redis
from .walk import visit

END = "The scenario has ended."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the example; return 0, or 2 if a process cannot be started."""
    parser = argparse.ArgumentParser(prog="python3 dev.py example several_hosts", description=__doc__)
    parser.add_argument("--no-serve", action="store_true", help="exit after the scenario")
    parser.add_argument(
        "--port",
        type=int,
        default=8000,
        help="the port of the front; 0 for any free one; by default 8000",
    )
    parser.add_argument("--redis", default=find_redis(), metavar="PROGRAM", help="a redis-server or a valkey-server")
    options = parser.parse_args(arguments)
    if options.redis is None:
        return fail("there is no redis-server 6.2 or newer: sudo apt install redis-server, or pass one with --redis")
    # Signals must also end the child processes. A shell starts background jobs with SIGINT ignored, so restore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with House(options.redis, 0 if options.no_serve else options.port) as house:
            visit(house)
            if not options.no_serve:
                serve(house)
    except (NotStarted, OSError, OverflowError) as error:
        return fail(str(error))
    print("Stopped.")
    return 0


def fail(message: str) -> int:
    """Print an error; return its exit code."""
    sys.stderr.write(f"several_hosts: {message}\n")
    return 2


def serve(house: House) -> None:
    """Serve until Ctrl-C, and print the events of the hosts."""
    with suppress(KeyboardInterrupt):
        for host in house.hosts:
            host.process.is_heard = True
        print(f"\n{END}\nServing at {house.url} until Ctrl-C.")
        print(f"  Redis is process {house.redis.pid}: kill it, and continue to send requests.")
        print(f"  Operators use {house.url}/admin/bans with the token {house.token}", flush=True)
        while True:
            time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
