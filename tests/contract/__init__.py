"""The store contract: the tests that every store must pass.

Derive a test class from `StoreContract`. It plays random programs to the store and to the models of `reference`, the
folder beside this one.
"""

from .store_contract import RandomContract, StoreContract, StoreHarness

__all__ = ["RandomContract", "StoreContract", "StoreHarness"]
