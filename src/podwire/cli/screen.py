"""The live picture as lines that fit a terminal: nothing is left to the terminal's own wrapping or scrolling.

What needs a person comes first when room is short: problems, then pods that are not as they should be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from rich.console import Console
from rich.text import Text

from podwire.cli import output, rows
from podwire.cli.live import Picture, event_line, ordered, pod_cells
from podwire.kube import ages
from podwire.kube.objects import Pod

_COLUMNS = ("NAME", "READY", "STATUS", "RESTARTS", "IPS", "AGE")
_DROPPED = ("AGE", "RESTARTS", "READY", "IPS")
_GAP = 3
_RECENT = 6
_REASON_LINES = 3
_EVENT_LINES = 2
_FEWEST_PODS = 3


def draw(picture: Picture, title: str, at: datetime, console: Console) -> list[Text]:
    """The lines of the picture: at most one less than the terminal has, none wider than it."""
    width, height = console.width, max(console.height - 1, 8)
    pods = ordered(picture.pods)
    heads = [Text(title, "bold").append(_summary(pods), "not bold")]
    problems = _problems(picture.problems, console, max(3, height // 3))
    events = _events(picture, at, console, max(2, height // 4))
    room = height - len(heads) - len(problems) - len(events)
    if room < _FEWEST_PODS + 2:
        room, events = room + len(events), []
    lines = [*heads, *_pods(pods, at, console, room), *problems, *events]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _summary(pods: Sequence[Pod]) -> str:
    if not pods:
        return ": no pods yet"
    counts = Counter(rows.status(pod) for pod in pods)
    states = ", ".join(f"{count} {status}" for status, count in counts.most_common(5))
    return f": {len(pods)} pod{'' if len(pods) == 1 else 's'}: {states}"


def _pods(pods: Sequence[Pod], at: datetime, console: Console, room: int) -> list[Text]:
    """The table; where not all have room, those that need a look are shown before the others."""
    if not pods:
        return []
    shown, left = list(pods), 0
    blocks = _blocks(shown, at, console)
    if 1 + sum(map(len, blocks)) > room:
        urgent = sorted(range(len(pods)), key=lambda index: _is_well(pods[index]))
        chosen: list[int] = []
        used = 2
        for index in urgent:
            if used + len(blocks[index]) > room:
                break
            used += len(blocks[index])
            chosen.append(index)
        left = len(pods) - len(chosen)
        blocks = [blocks[index] for index in sorted(chosen)]
    lines = [_heading(pods, at, console), *(line for block in blocks for line in block)]
    if left:
        lines.append(Text(f"and {left} more: podwire get pods -A", "dim"))
    return lines


def _is_well(pod: Pod) -> bool:
    done, _, total = rows.ready(pod).partition("/")
    return rows.status(pod) in {"Completed", "Succeeded"} or (rows.status(pod) == "Running" and done == total)


def _layout(pods: Sequence[Pod], at: datetime, width: int) -> dict[str, int]:
    """The columns that fit, each with its width; what matters least goes first."""
    table = [_COLUMNS, *(pod_cells(pod, at) for pod in pods)]
    layout = {head: max(len(row[index]) for row in table) for index, head in enumerate(_COLUMNS)}
    for head in _DROPPED:
        if sum(layout.values()) + _GAP * (len(layout) - 1) <= width:
            break
        del layout[head]
    return layout


def _heading(pods: Sequence[Pod], at: datetime, console: Console) -> Text:
    layout = _layout(pods, at, console.width)
    return Text((" " * _GAP).join(head.ljust(size) for head, size in layout.items()).rstrip(), "bold")


def _blocks(pods: Sequence[Pod], at: datetime, console: Console) -> list[list[Text]]:
    """Each pod's line, and the lines below it that say why it is not well."""
    layout = _layout(pods, at, console.width)
    blocks = []
    for pod in pods:
        cells = dict(zip(_COLUMNS, pod_cells(pod, at), strict=True))
        line = Text()
        for head, size in layout.items():
            style = output.style_of(cells[head]) if head == "STATUS" else ""
            line.append(cells[head].ljust(size), style).append(" " * _GAP)
        line.rstrip()
        reason = rows.reason(pod)
        below = _wrapped("  ", reason, "dim", console, _REASON_LINES) if reason else []
        blocks.append([line, *below])
    return blocks


def _problems(problems: Sequence[str], console: Console, room: int) -> list[Text]:
    lines: list[Text] = []
    for position, problem in enumerate(problems):
        block = _wrapped("! ", problem, "red", console, _REASON_LINES)
        if len(lines) + len(block) > room - (position + 1 < len(problems)):
            left = len(problems) - position
            return [*lines, Text(f"! and {left} more: podwire get events -A", "red")]
        lines += block
    return lines


def _events(picture: Picture, at: datetime, console: Console, room: int) -> list[Text]:
    """The last events, as many as have room, after an empty line."""
    blocks: list[list[Text]] = []
    for event in reversed(picture.events[-_RECENT:]):
        if event.message in picture.problems:
            continue
        head = f"{ages.since(event.last_timestamp, at):>5}  "
        style = "dim" if event.type == "Normal" else "yellow"
        block = _wrapped(head, event_line(event), style, console, _EVENT_LINES)
        if 1 + len(block) + sum(map(len, blocks)) > room:
            break
        blocks.insert(0, block)
    return [Text(), *(line for block in blocks for line in block)] if blocks else []


def _wrapped(head: str, text: str, style: str, console: Console, most: int) -> list[Text]:
    """``text`` after ``head``, in at most ``most`` lines cut between words."""
    width = max(console.width - len(head), 10)
    found = list(Text(rows.visible(text)).wrap(console, width, tab_size=1))
    if len(found) > most:
        found = found[:most]
        found[-1].rstrip()
        found[-1].truncate(width - 1)
        found[-1].append("…")
    lines = []
    for position, line in enumerate(found):
        line.rstrip()
        lines.append(Text(head if position == 0 else " " * len(head), style).append(line.plain))
    return lines
