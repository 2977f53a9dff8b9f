"""The customers in the database, with a small memory of those who called lately."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from slidegate import Limit, Quota

from .tables import ApiKey, Base, Plan, Tenant

KEPT = 1_024
"""How many keys are remembered, those that nobody owns included."""
KEPT_S = 5.0
"""How long: another process that changes a plan is heeded after this time."""
LONGEST_KEY = 128


@dataclass(frozen=True)
class Customer:
    """A tenant as one call needs it.

    Attributes:
        tenant: Its name.
        plan: The name of its plan.
        limits: The limits of that plan.
        paid: Whether its last bill is paid.
    """

    tenant: str
    plan: str
    limits: tuple[Limit, Quota]
    paid: bool

    @property
    def key(self) -> str:
        """The key by which its calls are counted: all its API keys together."""
        return key_of(self.tenant)


def key_of(tenant: str) -> str:
    """Return the key by which the calls of a tenant are counted."""
    return f"tenant:{tenant}"


class Customers:
    """Finds customers by their API keys, and changes their plans.

    Args:
        engine: The database.
        now_s: A clock in seconds, for the age of remembered keys.
    """

    def __init__(self, engine: AsyncEngine, now_s: Callable[[], float] = time.monotonic) -> None:
        self.engine = engine
        self._open = async_sessionmaker(engine, expire_on_commit=False)
        self._now_s = now_s
        self._known: OrderedDict[str, tuple[float, Customer | None]] = OrderedDict()
        self._changes = 0
        self.looked_up = 0
        """How often the database was asked for a key."""

    async def find(self, api_key: str) -> Customer | None:
        """Return whose key it is; None if it is nobody's."""
        if not 0 < len(api_key) <= LONGEST_KEY:
            return None
        digest = digest_of(api_key)
        known = self._known.get(digest)
        if known is not None and self._now_s() < known[0]:
            return known[1]
        changes = self._changes
        customer = await self.look_up(digest)
        if changes != self._changes:
            return customer  # as it was a moment ago: not to be remembered
        self._known[digest] = self._now_s() + KEPT_S, customer
        self._known.move_to_end(digest)
        if len(self._known) > KEPT:
            self._known.popitem(last=False)
        return customer

    @property
    def remembered(self) -> int:
        """How many keys are remembered."""
        return len(self._known)

    async def look_up(self, digest: str) -> Customer | None:
        """Ask the database."""
        self.looked_up += 1
        async with self._open() as session:
            found = await session.get(ApiKey, digest)
            return None if found is None else _customer(found.tenant)

    async def add(self, tenant: str, plan: str, *, paid: bool = True) -> str:
        """Take a tenant in; return its first API key, which is shown this once and never kept."""
        api_key = secrets.token_urlsafe(32)
        async with self._open.begin() as session:
            session.add(Tenant(name=tenant, plan_name=plan, paid=paid))
            await session.flush()
            session.add(ApiKey(digest=digest_of(api_key), tenant_name=tenant))
        return api_key

    async def change_plan(self, tenant: str, plan: str) -> bool:
        """Give a tenant another plan, from the next call on; False if there is no such tenant or plan."""
        async with self._open.begin() as session:
            found = await session.get(Tenant, tenant)
            if found is None or await session.get(Plan, plan) is None:
                return False
            found.plan_name = plan
        self._changes += 1
        self._known.clear()
        return True

    async def exists(self, tenant: str) -> bool:
        """Tell whether there is such a tenant."""
        async with self._open() as session:
            return await session.get(Tenant, tenant) is not None

    async def make_tables(self, plans: Mapping[str, tuple[int, int]]) -> None:
        """Make the tables, with some plans: calls per minute and per month by name."""
        async with self.engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        async with self._open.begin() as session:
            for name, (per_minute, per_month) in plans.items():
                await session.merge(Plan(name=name, per_minute=per_minute, per_month=per_month))


def _customer(tenant: Tenant) -> Customer:
    plan = tenant.plan
    # One window and one period in all plans: so a tenant that changes plan keeps the units that it has spent.
    limits = Limit(plan.per_minute, "1m", name="minute"), Quota(f"{plan.per_month}/month", name="month")
    return Customer(tenant.name, plan.name, limits, tenant.paid)


def digest_of(api_key: str) -> str:
    """Return the text under which a key is kept."""
    return hashlib.sha256(api_key.encode()).hexdigest()
