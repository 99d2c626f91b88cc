"""One call to an API server: its turn, its tries, its deadline, its answer or error."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import NamedTuple

import aiohttp

from podwire.kube.clock import Clock, deadline
from podwire.kube.decode import decode_status, encode
from podwire.kube.errors import (
    ApiError,
    BadAnswer,
    ConnectionFailed,
    DeadlinePassed,
    InternalError,
    ServerTimeout,
    ServiceUnavailable,
    Timeout,
    TooManyRequests,
    api_error,
)
from podwire.kube.ratelimit import Priority, TokenBucket
from podwire.kube.transport import Transport

TIMEOUT = 30.0
"""Seconds for a call, all its tries together."""
TRIES = 5
_FIRST_DELAY = 0.2
_LAST_DELAY = 5.0


class Answer(NamedTuple):
    """An answer that was no error."""

    code: int
    content_type: str
    body: bytes


class Calls:
    """Calls to one server, which share a limit of their rate.

    Reading is tried again when the connection breaks or the server asks for that; writing only where it is
    certain that nothing was done.
    """

    def __init__(
        self, transport: Transport, bucket: TokenBucket, clock: Clock, timeout: float, rng: random.Random
    ) -> None:
        self._transport = transport
        self._bucket = bucket
        self._clock = clock
        self._timeout = timeout
        self._random = rng

    async def ask(
        self,
        method: str,
        path: str,
        params: Mapping[str, str],
        body: object = None,
        content_type: str = "application/json",
        *,
        timeout: float | None,
        priority: Priority,
        tries: int = TRIES,
    ) -> bytes:
        """The body of an answer that is JSON."""
        answer = await self.call(
            method, path, params, body, content_type, timeout=timeout, priority=priority, tries=tries
        )
        if not is_json(answer.content_type):
            raise BadAnswer(f"{method} {path}: JSON was expected, {answer.content_type or 'nothing'} came")
        return answer.body

    async def call(
        self,
        method: str,
        path: str,
        params: Mapping[str, str],
        body: object,
        content_type: str,
        *,
        accept: str = "application/json",
        timeout: float | None,
        priority: Priority,
        tries: int,
    ) -> Answer:
        """The answer, after as many tries as are allowed and make sense."""
        given = self._timeout if timeout is None else timeout
        data = body if isinstance(body, bytes) or body is None else encode(body)
        headers = {"Accept": accept}
        if data is not None:
            headers["Content-Type"] = content_type
        sent = query(params)
        last: ApiError | ConnectionFailed | None = None
        try:
            async with deadline(self._clock, given):
                for number in range(1, tries + 1):
                    await self._bucket.take(priority)
                    try:
                        return await self._once(method, path, sent, headers, data)
                    except (ApiError, ConnectionFailed) as error:
                        last = error
                        delay = self._delay(method, error, number)
                        if delay is None or number == tries:
                            raise
                    await self._clock.sleep(delay)
        except TimeoutError as error:
            if last is not None:
                raise last from error
            raise DeadlinePassed(f"{method} {path}: not done in {given:g} s", error) from error
        raise AssertionError("unreachable")

    async def _once(
        self,
        method: str,
        path: str,
        params: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes | None,
    ) -> Answer:
        async with self._transport.request(
            method, path, params=params, headers=headers, body=body
        ) as response:
            if not 200 <= response.status < 300:
                raise await self.error(response)
            return Answer(response.status, response.content_type, await response.read())

    async def error(self, response: aiohttp.ClientResponse) -> ApiError:
        """What an answer that is none tells."""
        status = decode_status(await response.read(), response.status)
        return api_error(status, self._transport.retry_after(response))

    def _delay(self, method: str, error: ApiError | ConnectionFailed, number: int) -> float | None:
        """Seconds until the next try; None if there shall be none."""
        reading = method in ("GET", "HEAD", "OPTIONS")
        backoff = min(_FIRST_DELAY * float(2 ** (number - 1)), _LAST_DELAY) * (1 + self._random.random())
        if isinstance(error, ConnectionFailed):
            return backoff if reading or not error.sent else None
        if isinstance(error, TooManyRequests):
            return backoff if error.retry_after is None else max(error.retry_after, backoff / 2)
        if error.version_too_large:
            return None
        if isinstance(error, ServiceUnavailable | ServerTimeout | Timeout | InternalError):
            if error.retry_after is not None:
                return max(error.retry_after, backoff / 2)
            return backoff if reading and not isinstance(error, InternalError) else None
        return None


def query(params: Mapping[str, str]) -> dict[str, str]:
    """The parameters that are not empty."""
    return {name: value for name, value in params.items() if value != ""}


def is_json(content_type: str) -> bool:
    """Whether a media type is JSON."""
    return content_type == "application/json" or content_type.endswith("+json")
