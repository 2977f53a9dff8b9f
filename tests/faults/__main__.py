"""What workers go through when their store has faults: how long until they are back, and the longest wait of a request.

    python3 dev.py faults [--runs 3] [SCENE ...]

16 tasks hit a limiter with a deadline of 50 ms and `on_error="deny"`, without a break, while its store has a fault. A
line of the table says how many hits the store did not decide, when it decided all of them again after the fault was
over, how long the longest hit took, and by how much the event loop itself was late at most: what a busy machine adds to
any wait. Wrong are hits that passed beyond a limit of 1,000 an hour, or in spite of a ban.
"""

import argparse
import asyncio
import logging
import sys

from . import lmdb, redis
from .playing import played

SCENES = {
    f"{store}: {name}": make for store, room in (("LMDB", lmdb), ("Redis", redis)) for name, make in room.SCENES.items()
}

TITLES = ("hits", "undecided", "wrong", "back after s", "longest ms", "loop late ms")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="dev.py faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenes", nargs="*", metavar="SCENE", help="parts of their names; by default all")
    parser.add_argument("--runs", type=int, default=1, help="how often each is played")
    options = parser.parse_args()
    logging.disable()
    wrong = 0
    print(f"{'scene':36}" + "".join(f"{title:>14}" for title in TITLES))
    for name, make in SCENES.items():
        if options.scenes and not any(part in name for part in options.scenes):
            continue
        for _ in range(options.runs):
            record = asyncio.run(played(make))
            counts = f"{record.hits:>14,}{len(record.undecided_s):>14,}{record.wrong:>14}"
            times = f"{record.back_s:>14.2f}{record.longest_s * 1000:>14.0f}{record.late_s * 1000:>14.0f}"
            print(f"{name:36}{counts}{times}", flush=True)
            wrong += record.wrong
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
