"""The two random tests of the store contract, for stores that differ from another by their transport alone.

Memory, LMDB and Redis pass the whole contract. Where the same code answers over another wire, or the same file from two
processes, random programs of windows and of bans find what is different there.
"""

from __future__ import annotations

from slidegate.testing.contract import StoreContract

RANDOM = ("test_answers_are_those_of_the_reference", "test_bans_are_those_of_the_reference")


class RandomContract(StoreContract):
    """The contract without the tests that are examples; a subclass provides `make_store`."""


for _name in dir(StoreContract):
    if _name.startswith("test_") and _name not in RANDOM:
        setattr(RandomContract, _name, None)
