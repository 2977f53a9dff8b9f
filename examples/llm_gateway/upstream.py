"""Asks the model, no faster than its terms allow, and gives its errors one form."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator

import httpx

from slidegate.httpx import LimitedTransport, TurnTimeout

PATIENCE_S = 60.0
"""How long the model may be silent."""


class ModelError(Exception):
    """The model gave no answer, or not all of it.

    Attributes:
        status: What the gateway answers where its answer has not begun.
        retry_after_s: When it is worth another try, if somebody knows.
    """

    def __init__(self, text: str, status: int = 502, retry_after_s: int | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.retry_after_s = retry_after_s


class Answer:
    """An answer of the model that has begun."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response

    async def tokens(self) -> AsyncGenerator[str, None]:
        """Yield the tokens as they come.

        Raises:
            ModelError: The answer broke off.
        """
        try:
            async for line in self._response.aiter_lines():
                if line == "data: [DONE]":
                    return
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))["text"]
        except (httpx.HTTPError, ValueError, KeyError) as error:
            raise ModelError("the model broke off") from error
        raise ModelError("the model broke off")

    async def close(self) -> None:
        """Let go of the model, which stops there if it has not ended."""
        await self._response.aclose()


class Upstream:
    """The way to the model.

    Args:
        url: The address of the model.
        limits: The limit in its terms of use.
        wait: How long a question may wait for its turn.
        transport: Sends the questions; by default over HTTP.
    """

    def __init__(
        self, url: str, limits: str, *, wait: str = "30s", transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        limited = LimitedTransport(limits=limits, wait=wait, retries=3, transport=transport)
        self._client = httpx.AsyncClient(transport=limited, base_url=url, timeout=PATIENCE_S)

    async def ask(self, prompt: str, max_tokens: int) -> Answer:
        """Wait for a turn, ask, and return when the answer begins.

        Raises:
            ModelError: There is no answer.
        """
        asked = {"prompt": prompt, "max_tokens": max_tokens}
        try:
            request = self._client.build_request("POST", "/v1/complete", json=asked)
            response = await self._client.send(request, stream=True)
        except TurnTimeout as error:
            wait_us = error.retry_after_us
            raise ModelError("the model is busy", 503, wait_us and -(-wait_us // 1_000_000)) from error
        except httpx.HTTPError as error:
            raise ModelError("the model does not answer") from error
        if response.status_code == 200:
            return Answer(response)
        await response.aclose()
        if response.status_code in (429, 503):
            wait = response.headers.get("Retry-After", "")
            raise ModelError("the model is busy", 503, int(wait) if wait.isdecimal() and len(wait) < 6 else None)
        raise ModelError("the model refused the question")

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()
