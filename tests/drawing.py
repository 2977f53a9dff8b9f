"""How many random examples a test draws: few in the command that is run all the time, all of them in `--all` and CI.

What a mutant has once passed is an example beside the property, and is played everywhere.
"""

from typing import Final

from hypothesis import settings

ALL: Final = 100
"""The examples of the profile that draws all."""


def examples(most: int) -> int:
    """Return `most`, or in a quick run a share of it."""
    return min(most, max(3, most * settings().max_examples // ALL))
