"""``podwire cni --trace``: each plugin's turn on stderr, with its time, its input and its output."""

from __future__ import annotations

import json
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from podwire.cni.turns import Step


class Trace:
    """Prints steps as they end: as text, or with ``as_json`` as one JSON object a line."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._lock = threading.Lock()

    def __call__(self, step: Step) -> None:
        """Print a step; called from the thread that worked."""
        text = json.dumps(_said(step)) if self._as_json else _text(step)
        with self._lock:
            print(text, file=sys.stderr, flush=True)


def _output(step: Step) -> Any:
    """What the plugin printed, or would have."""
    from podwire.cni.convert import to_object

    if step.error is not None:
        return json.loads(step.error.to_json(step.config.get("cniVersion", "")))
    return None if step.result is None else to_object(step.result, step.config["cniVersion"])


def _said(step: Step) -> dict[str, Any]:
    said = {
        "command": step.command,
        "plugin": step.plugin,
        "position": step.position,
        "executable": step.executable or None,
        "milliseconds": round(step.seconds * 1000, 3),
        "containerID": step.attachment.container_id,
        "ifname": step.attachment.ifname,
        "netns": step.attachment.netns,
        "stdin": step.config,
        "output": _output(step),
        "stderr": step.stderr or None,
    }
    return {key: value for key, value in said.items() if value not in (None, "")}


def _text(step: Step) -> str:
    where = step.executable or "in this process"
    turn = f"{step.command} {step.plugin} ({step.position} of {step.total}, {where})"
    lines = [f"{turn}: {step.seconds * 1000:.1f} ms", f"  input   {json.dumps(step.config)}"]
    output = _output(step)
    if output is not None:
        lines.append(f"  {'error ' if step.error else 'output'}  {json.dumps(output)}")
    if step.stderr:
        lines.append(f"  stderr  {step.stderr}")
    return "\n".join(lines)
