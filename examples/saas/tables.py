"""The tables: plans, tenants, and API keys, of which only digests are kept."""

from __future__ import annotations

from sqlalchemy import ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship


class Base(DeclarativeBase):
    """The metadata of all tables."""


class Plan(Base):
    """A plan that is sold.

    Attributes:
        name: Its name.
        per_minute: Calls in any minute.
        per_month: Calls in a month of the calendar.
    """

    __tablename__ = "plans"
    name: Mapped[str] = mapped_column(primary_key=True)
    per_minute: Mapped[int]
    per_month: Mapped[int]


class Tenant(Base):
    """A customer.

    Attributes:
        name: Its name, by which its calls are counted.
        plan_name: The plan that it has bought.
        paid: Whether its last bill is paid.
    """

    __tablename__ = "tenants"
    name: Mapped[str] = mapped_column(primary_key=True)
    plan_name: Mapped[str] = mapped_column(ForeignKey("plans.name"))
    paid: Mapped[bool] = mapped_column(default=True)
    plan: Mapped[Plan] = relationship(lazy="joined")


class ApiKey(Base):
    """A key of a tenant, which may have several.

    Attributes:
        digest: SHA-256 of the key, in hex. Keys are long and random, so nobody finds one by trying.
        tenant_name: The tenant that it belongs to.
    """

    __tablename__ = "api_keys"
    digest: Mapped[str] = mapped_column(primary_key=True)
    tenant_name: Mapped[str] = mapped_column(ForeignKey("tenants.name"))
    tenant: Mapped[Tenant] = relationship(lazy="joined")
