"""Minutes of mixed load on several workers, over LMDB and then over Redis, while workers and servers are killed.

    python3 dev.py soak --minutes 10 --seed 1

uvicorn workers share a socket of the loopback interface and a store. Clients send requests to rules of every kind; some
abuse and are banned, some leave before the answer or in the middle of a stream. Meanwhile workers are killed (SIGKILL)
and started again, and the redis-server is killed, brought back with its append-only file, and paused. At the end the
answers that the clients saw are checked: no window held more than its limit, no ban was lost, no request hung. Workers
may not have grown, nor have tasks or files left over. The exit code is 1 if a promise was broken.
"""

import argparse
import asyncio
import platform
import random
import sys
from datetime import UTC, datetime

from ..redis_servers import REDIS
from .soaking import soak

STORES = ("lmdb", "redis")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="dev.py soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=2.0, help="of all parts together")
    parser.add_argument("--seed", type=int, default=None, help="of what clients do, and of the faults")
    parser.add_argument("--workers", type=int, default=3, choices=range(2, 17), metavar="2..16")
    parser.add_argument("--store", choices=STORES, default=None, help="only this one")
    options = parser.parse_args(arguments)
    stores = [options.store] if options.store else list(STORES)
    if "redis" in stores and REDIS is None:
        parser.error("there is no redis-server; python3 dev.py test says how to get one, --store lmdb goes without")
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}, {datetime.now(UTC):%Y-%m-%d}, CPython {platform.python_version()}", flush=True)
    broken = list[str]()
    for store in stores:
        findings = asyncio.run(soak(store, options.minutes * 60 / len(stores), options.workers, seed))
        print(f"\n{findings.store}: {'BROKEN' if findings.broken else 'all promises held'}", end="")
        print("", *findings.broken, *findings.lines, sep="\n  ", flush=True)
        broken += findings.broken
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
