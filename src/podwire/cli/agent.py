"""``podwire agent``, ``podwire agent status`` and ``podwire gc``."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from podwire.cli import lock, output
from podwire.cli.errors import CommandError, usage
from podwire.cli.locations import Locations


def serve(places: Locations, config: str | None, *, verbose: bool) -> int:
    """Be the agent until told to end; the exit status is 1 if requests were not done by then."""
    if os.geteuid() != 0:
        raise CommandError("the agent needs root", hint="Try it with sudo.")
    from podwire.agent import settings as agent_settings
    from podwire.agent.daemon import Agent

    settings = agent_settings.load(Path(config)) if config else agent_settings.Settings()
    level = logging.DEBUG if verbose or settings.verbose else logging.INFO
    logging.basicConfig(stream=sys.stderr, level=level, format="%(asctime)s %(levelname)s %(message)s")
    for directory in (places.run, places.state):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with lock.hold(places.agent_lock):
            return 1 if Agent(places.agent_socket, places.state, settings).run() else 0
    except lock.NodeRunning as error:
        raise CommandError(
            f"an agent runs already, as process {error.pid}" if error.pid else "an agent runs already",
            hint=f"See: podwire agent{places.flags} status",
        ) from error


def status(places: Locations, form: str) -> int:
    """Print what the agent tells of itself; 1 if something is wrong."""
    found = _ask(places, "GET", "/v1/status", form)
    if form == "json":
        print(json.dumps(found, indent=2))
        return 1 if found["problems"] else 0
    done = found["requests"]
    records = found["attachments"]
    print(f"podwire {found['version']} agent, process {found['pid']}, up for {_age(found['uptimeSeconds'])}")
    print(f"plugins      {' '.join(found['plugins'])}")
    print(f"attachments  {'unknown' if records is None else records}")
    print(
        f"requests     {done['served']} served, {done['failed']} failed, {done['refused']} refused,"
        f" {done['givenUp']} given up, {done['abandoned']} abandoned, {done['undone']} undone"
    )
    if found["mended"]:
        print(f"repairs      {found['mended']}")
    for each in found["damaged"]:
        print(f"damaged      {each['attachment']}: {each['why']}")
    for each in found["running"]:
        print(
            f"running      {each['request']}, for {each['seconds']:.1f} s{' (late)' if each['late'] else ''}"
        )
    for each in found["problems"]:
        print(f"problem      {each['what']}: {each['why']}")
    return 1 if found["problems"] else 0


def collect(places: Locations, form: str, *, dry_run: bool) -> int:
    """Remove, or list, what no live namespace needs; 1 if something could not be removed."""
    found = _ask(places, "POST", f"/v1/gc?dry-run={'true' if dry_run else 'false'}", form)["found"]
    failed = any(each.get("error") for each in found)
    if form == "json":
        print(json.dumps(found, indent=2))
    elif not found:
        output.note("nothing to remove")
    else:
        headings = ("NETWORK", "CONTAINER", "IFNAME", "PLUGIN", "REASON", "OUTCOME")
        keys = ("network", "containerID", "ifname", "plugin", "reason")
        rows = [(*(str(each[key]) for key in keys), _outcome(each, dry_run)) for each in found]
        output.print_table(headings, rows)
    return 1 if failed else 0


def _outcome(each: Mapping[str, Any], dry_run: bool) -> str:
    if dry_run:
        return "would go"
    return str(each["error"]) or "removed"


def _ask(places: Locations, method: str, target: str, form: str) -> Any:
    from podwire.agent import asking

    if form not in ("", "json"):
        raise usage(f"--output {form!r} is not json")
    try:
        return asking.ask(places.agent_socket, method, target)
    except asking.NotRunning as error:
        raise CommandError(str(error), hint=f"Start it with: podwire agent{places.flags}") from error


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} s"
