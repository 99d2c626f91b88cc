"""The handlers that probes and hooks share: HTTP GET and TCP connect from the node to the pod."""

from __future__ import annotations

import asyncio

import aiohttp

from podwire.kube.objects import Container, HTTPGetAction, TCPSocketAction

BODY_LIMIT = 10 * 1024


class Unreachable(Exception):
    """The pod gave no answer; the text is why."""


def port_number(port: int | str, container: Container) -> int:
    """The number of a port given as a number, as digits, or as the name of one of the container's ports."""
    if isinstance(port, int):
        return port
    for known in container.ports:
        if known.name == port:
            return known.container_port
    if port.isdecimal():
        return int(port)
    raise Unreachable(f"container {container.name} has no port named {port!r}")


def url(action: HTTPGetAction, container: Container, pod_ip: str) -> str:
    """Where the request goes."""
    host = action.host or pod_ip
    host = f"[{host}]" if ":" in host else host
    path = action.path if action.path.startswith("/") else f"/{action.path}"
    scheme = (action.scheme or "HTTP").lower()
    return f"{scheme}://{host}:{port_number(action.port, container)}{path}"


async def http_get(
    action: HTTPGetAction, container: Container, pod_ip: str, timeout: float
) -> tuple[int, str]:
    """Status code and the start of the body. Certificates are not checked, redirects not followed."""
    headers = {"User-Agent": "kube-probe/podwire", "Accept": "*/*"}
    headers.update({header.name: header.value for header in action.http_headers})
    target = url(action, container, pod_ip)
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout)) as session,
            session.get(target, headers=headers, ssl=False, allow_redirects=False) as response,
        ):
            body = await response.content.read(BODY_LIMIT)
            return response.status, body.decode(errors="replace")
    except TimeoutError:
        raise Unreachable(f'Get "{target}": no answer within {timeout:g} s') from None
    except aiohttp.ClientError as error:
        raise Unreachable(f'Get "{target}": {error}') from error


async def tcp_connect(action: TCPSocketAction, container: Container, pod_ip: str, timeout: float) -> None:
    """Return when the connection stands."""
    host, port = action.host or pod_ip, port_number(action.port, container)
    try:
        async with asyncio.timeout(timeout):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        raise Unreachable(f"dial tcp {host}:{port}: no answer within {timeout:g} s") from None
    except OSError as error:
        raise Unreachable(f"dial tcp {host}:{port}: {error.strerror or error}") from error
    writer.close()
    try:
        await writer.wait_closed()
    except OSError:
        return
