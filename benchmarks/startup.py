"""The time of `import slidegate`, compared with `import starlette.applications`, a part of which it imports too.

It measures the processor time of fresh interpreters, alternately. Other programs can only increase that, so the minimum
of all rounds counts. `-I` ignores the environment, and the bytecode of every module is already cached.
"""

import resource
import subprocess
import sys
from argparse import ArgumentParser

from .rounds import ROOT, show

CODE = ("pass", "import starlette.applications", "import slidegate")


def spent_ms(code: str) -> float:
    """Return the processor time of a new interpreter that runs some code, in milliseconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    path = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r}); "
    subprocess.run([sys.executable, "-I", "-c", path + code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1_000


def main(parser: ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    taken = [[spent_ms(code) for code in CODE] for _ in range(options.rounds + 1)]
    nothing, starlette, ours = map(min, zip(*taken[1:], strict=True))
    starlette, ours = starlette - nothing, ours - nothing
    row = ["importing", f"{starlette:.1f}", f"{ours:.1f}", f"{ours / starlette:.2f}", "≤1.35"]
    show("", ["what", "Starlette ms", "slidegate ms", "ratio", "target"], [row])
