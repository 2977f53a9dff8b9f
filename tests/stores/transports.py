"""The two random tests of the store contract, for stores that differ from another by their transport alone.

Memory, LMDB and Redis pass the whole contract. Where the same code answers over another wire, or the same file from two
processes, random programs of windows and of bans find what is different there.
"""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from ..contract import StoreContract

RANDOM = ("test_answers_are_those_of_the_reference", "test_bans_are_those_of_the_reference")


class RandomContract(StoreContract):
    """The contract without the tests that are examples; a subclass provides `make_store`."""

    @pytest.fixture(autouse=True)
    def _fewer_programs(self) -> Iterator[None]:
        """Play fewer programs than on the store itself, whose arithmetic it is; with `deep` as many."""
        before = os.environ.get("HYPOTHESIS_PROFILE", "default")
        settings.load_profile("transport" if before == "default" else before)
        yield
        settings.load_profile(before)


for _name in dir(StoreContract):
    if _name.startswith("test_") and _name not in RANDOM:
        setattr(RandomContract, _name, None)
