"""The HTTP source: pods from URLs, asked for each 20 s.

A body is a Pod, a PodList or a list of Pods; an empty one says that there are none. What cannot be fetched or
used leaves the last good pods as they are, also across a restart of the node. An answer 404 or 410 says that
there is no manifest: the source counts as seen, and pods that were good before stay.
Source: k8s.io/kubernetes pkg/kubelet/config/http.go.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

import aiohttp
from yarl import URL

from podwire import __version__
from podwire.kube.urls import url_fault
from podwire.kube.yamltree import MAX_BYTES
from podwire.sources.kept import LastGood
from podwire.sources.page import Page
from podwire.sources.problems import Reason, SourceProblem
from podwire.sources.updates import HTTP, Emit, Snapshot

_log = logging.getLogger(__name__)

LOUD = 3
"""How many failures in a row are logged as warnings; later ones only for debugging."""
_NO_MANIFEST = (HTTPStatus.NOT_FOUND, HTTPStatus.GONE)


class _Refused(Exception):
    """An answer that holds no manifest; ``definite`` if it says that there is none."""

    def __init__(self, message: str, *, definite: bool = False) -> None:
        super().__init__(message)
        self.definite = definite


class _Answer(NamedTuple):
    body: bytes
    tag: str
    """The ETag; empty for none."""


class HTTPSource:
    """Pods from URLs, which are http or https. ``headers`` go with each request, one pair a value.

    ``poll_interval`` and ``timeout`` (of one whole answer) are in seconds. ``keep`` is a directory for the
    last good body of each URL; None: no run knows of the one before. Several URLs are one source, which
    counts as seen when each has answered. Raises ValueError for what is no such URL.
    """

    name = HTTP

    def __init__(
        self,
        urls: str | Iterable[str],
        node_name: str,
        *,
        headers: Iterable[tuple[str, str]] = (),
        poll_interval: float = 20.0,
        timeout: float = 10.0,
        keep: Path | None = None,
    ) -> None:
        several = (urls,) if isinstance(urls, str) else urls
        self.urls = tuple(dict.fromkeys(several))
        for url in self.urls:
            wrong = url_fault(url) or ("" if url.lower().startswith(("http:", "https:")) else "not of http")
            if wrong:
                raise ValueError(f"{url!r} is not a URL of pods: {wrong}")
        kept = LastGood(keep)
        self.node_name = node_name
        self.poll_interval = poll_interval
        self.timeout = timeout
        self._headers = tuple(headers)
        self._pages = [Page(url, shown_url(url), kept) for url in self.urls]
        self._failures = dict.fromkeys(self.urls, 0)
        texts = kept.load()
        for page in self._pages:
            page.recalled = texts.pop(page.url, None)
        for url in texts:
            kept.forget(url)

    async def run(self, emit: Emit) -> None:
        """Give ``emit`` a snapshot after every poll that brought a change, until cancelled."""
        last: Snapshot | None = None
        async with self.session() as session:
            while True:
                snapshot = await self.poll(session)
                if snapshot != last:
                    last = snapshot
                    emit(snapshot)
                await asyncio.sleep(self.poll_interval)

    def session(self) -> aiohttp.ClientSession:
        """A session with this source's headers; proxies are those of the environment."""
        headers = [
            ("User-Agent", f"podwire/{__version__}"),
            ("Accept", "application/json, application/yaml, */*"),
        ]
        return aiohttp.ClientSession(
            headers=[*(pair for pair in headers if not self._given(pair[0])), *self._headers],
            timeout=aiohttp.ClientTimeout(total=self.timeout),
            trust_env=True,
        )

    async def poll(self, session: aiohttp.ClientSession) -> Snapshot:
        """Ask every URL once, side by side; what is known now."""
        await asyncio.gather(*(self._refresh(session, page) for page in self._pages))
        return self._snapshot()

    def _given(self, name: str) -> bool:
        return any(name.lower() == given.lower() for given, _ in self._headers)

    async def _refresh(self, session: aiohttp.ClientSession, page: Page) -> None:
        good = False
        try:
            answer = await self._fetch(session, page)
        except _Refused as refused:
            page.answered = page.answered or refused.definite
            reason = Reason.MISSING_PATH if refused.definite else Reason.FAILED_READ
            page.failed(reason, str(refused), self.node_name)
        except (aiohttp.ClientError, TimeoutError, OSError, UnicodeError) as error:
            page.failed(Reason.FAILED_READ, self._explain(error), self.node_name)
        else:
            good = page.unchanged() if answer is None else page.body(answer.body, self.node_name)
            if answer is not None:
                page.validators = {"If-None-Match": answer.tag} if answer.tag else {}
        self._tell(page, good=good)

    async def _fetch(self, session: aiohttp.ClientSession, page: Page) -> _Answer | None:
        """What the server has; None for what it had at the last time."""
        async with session.get(page.url, headers=page.validators) as response:
            if response.status == HTTPStatus.NOT_MODIFIED and page.validators:
                return None
            if response.status != HTTPStatus.OK:
                text = f"the answer is {response.status} {_phrase(response.status)}"
                raise _Refused(text, definite=response.status in _NO_MANIFEST)
            # Last-Modified has whole seconds: it cannot tell two bodies of one second apart.
            return _Answer(await _limited(response), response.headers.get("ETag", ""))

    def _tell(self, page: Page, *, good: bool) -> None:
        if good:
            if self._failures[page.url]:
                _log.info("%s: good again", page.shown)
            self._failures[page.url] = 0
            return
        self._failures[page.url] += 1
        loud = self._failures[page.url] <= LOUD
        for problem in page.problems:
            _log.log(logging.WARNING if loud else logging.DEBUG, "%s", problem)

    def _snapshot(self) -> Snapshot:
        by_name: dict[str, str] = {}
        by_uid: dict[str, str] = {}
        pods = []
        problems: list[SourceProblem] = []
        for page in self._pages:
            problems.extend(page.problems)
            for pod in page.pods:
                name, uid = pod.full_name, pod.metadata.uid
                first = by_name.get(name) or by_uid.get(uid)
                if first is None:
                    by_name[name] = by_uid[uid] = page.shown
                    pods.append(pod)
                    continue
                what = f'pod "{name}"' if name in by_name else f'a pod with UID "{uid}"'
                message = f"{what} is already in {first}: this one is left out"
                problems.append(
                    SourceProblem(HTTP, page.shown, None, Reason.DUPLICATE_NAME, message, pod=name)
                )
        complete = all(page.answered for page in self._pages)
        return Snapshot(HTTP, tuple(pods), tuple(problems), complete=complete)

    def _explain(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"no whole answer within {self.timeout:g} s"
        if isinstance(error, aiohttp.TooManyRedirects):
            return "too many redirects"
        if isinstance(error, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError | UnicodeError):
            return f"no URL that can be asked: {error}"
        if isinstance(error, aiohttp.ClientPayloadError):
            return "the connection ended in the middle of the answer"
        if isinstance(error, OSError) and error.errno and error.errno > 0:
            return os.strerror(error.errno)
        return str(error) or type(error).__name__


async def _limited(response: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for chunk in response.content.iter_chunked(1 << 16):
        parts.append(chunk)
        size += len(chunk)
        if size > MAX_BYTES:
            raise _Refused(f"the answer has more than {MAX_BYTES} bytes (10 MiB)")
    return b"".join(parts)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def shown_url(url: str) -> str:
    """The URL as it can be printed: without user and password."""
    parsed = URL(url)
    return str(parsed.with_user(None)) if parsed.user or parsed.password else str(parsed)
