"""A process that measures one version of slidegate: it runs a round each time its parent requests one.

`python -m benchmarks.worker` takes the names of candidates as one JSON argument.
It prints the location of slidegate, creates the candidates, reads the numbers of rounds, one per line, and prints the
microseconds of each candidate.
"""

import asyncio
import gc
import json
import logging
import sys
from pathlib import Path

import slidegate

from . import limiter, real
from .rounds import Round, Times, order_of
from .traffic import CountingLoop

CANDIDATES = {row.name: row.candidate for rows in (real.TABLES | limiter.TABLES).values() for row in rows}


async def run_all(made: dict[str, Round], turn: int) -> Times:
    """Run every candidate once."""
    return {name: await made[name](turn) for name in order_of(made, turn)}


async def main() -> None:
    """Run rounds until the parent closes the standard input."""
    made = {name: await CANDIDATES[name]() for name in json.loads(sys.argv[1])}
    await run_all(made, 0)
    # Exempt the objects of all candidates from garbage collections, which would be charged to one candidate.
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        print(json.dumps(await run_all(made, int(line))), flush=True)


if __name__ == "__main__":
    print(Path(slidegate.__file__).parent, flush=True)
    logging.disable()
    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        runner.run(main())
