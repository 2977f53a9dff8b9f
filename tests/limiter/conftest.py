"""Stores of each kind, for tests of limiters on them."""

from ..stores.conftest import observer, opened_as  # noqa: F401 - fixtures
