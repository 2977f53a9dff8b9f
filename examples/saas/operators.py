"""What operators do with one customer: look at what it has spent, give it another plan, forget what it has spent."""

from secrets import compare_digest
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from slidegate import Limiter

from .customers import Customers, key_of


def operators(limiter: Limiter, customers: Customers, token: str) -> APIRouter:
    """Return the routes of operators, who show a token."""

    def operator(shown: Annotated[HTTPAuthorizationCredentials, Depends(HTTPBearer())]) -> None:
        if not compare_digest(shown.credentials.encode(), token.encode()):
            raise HTTPException(401, "not an operator's token")

    async def known(tenant: str) -> str:
        if not await customers.exists(tenant):
            raise HTTPException(404, f"there is no tenant {tenant!r}")
        return tenant

    routes = APIRouter(prefix="/operators/tenants/{tenant}", dependencies=[Depends(operator)])
    Known = Annotated[str, Depends(known)]

    @routes.get("")
    async def look(tenant: Known) -> dict[str, dict[str, int]]:
        view = await limiter.inspect(key_of(tenant))
        return {"used": {window.name: window.used for window in view.windows if window.used}}

    @routes.put("/plan/{plan}")
    async def change_plan(tenant: Known, plan: str) -> dict[str, str]:
        if not await customers.change_plan(tenant, plan):
            raise HTTPException(404, f"there is no plan {plan!r}")
        return {"tenant": tenant, "plan": plan}

    @routes.post("/reset")
    async def reset(tenant: Known) -> dict[str, bool]:
        return {"forgotten": await limiter.reset(key_of(tenant))}

    return routes
