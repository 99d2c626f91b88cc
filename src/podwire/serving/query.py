"""Parameters in the query of a request, as Kubernetes reads them."""

from __future__ import annotations

from aiohttp import web

from podwire.serving import status


def flag(request: web.Request, name: str) -> bool:
    """A boolean of the query. ``?watch`` alone counts as true, as does any value but 0 and false."""
    value = request.query.get(name)
    return value is not None and value.lower() not in ("0", "false")


def number(request: web.Request, name: str) -> int | None:
    """A whole number of the query. Raise Failure 400."""
    text = request.query.get(name)
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise status.bad_request(f"strconv.ParseInt: parsing {status.quoted(text)}: invalid syntax") from None
