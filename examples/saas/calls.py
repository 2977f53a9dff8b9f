"""The calls that tenants pay for, and a free look at what is left of a plan."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Request

from slidegate import Limiter

from .customers import Customer, Customers

Render = Callable[[str], Awaitable[str]]


class RenderError(Exception):
    """A report could not be made."""


async def render_report(tenant: str) -> str:
    """Stand for an expensive piece of work."""
    await asyncio.sleep(2)
    return f"the report of {tenant}"


def calls(limiter: Limiter, customers: Customers, render: Render) -> APIRouter:
    """Return the routes of tenants, who show an API key."""

    async def known(request: Request) -> Customer:
        customer = await customers.find(request.headers.get("X-API-Key", ""))
        if customer is None:
            raise HTTPException(401, "this API key is nobody's")
        return customer

    async def paying(customer: Annotated[Customer, Depends(known)]) -> Customer:
        if not customer.paid:
            raise HTTPException(402, "the last bill is not paid")
        return customer

    routes = APIRouter(prefix="/v1")

    @routes.get("/words/{word}", dependencies=[Depends(paying)])
    async def look_up(word: str) -> dict[str, object]:
        return {"word": word, "letters": len(word)}

    @routes.post("/reports")
    async def report(customer: Annotated[Customer, Depends(paying)]) -> dict[str, str]:
        try:
            return {"report": await render(customer.tenant)}
        except RenderError as error:
            # Not left to the server: the middleware would see no answer then, and the call would stay charged.
            raise HTTPException(503, "no report now; try again") from error

    @routes.get("/standing")
    async def standing(customer: Annotated[Customer, Depends(known)]) -> dict[str, object]:
        decision = await limiter.peek(customer.key, customer.limits, cost=0, rule="plan")
        left = {state.name: state.remaining for state in decision.states}
        return {"tenant": customer.tenant, "plan": customer.plan, "left": left, "retry_after": decision.retry_after}

    return routes
