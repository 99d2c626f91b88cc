"""What ``up`` shows while the node runs: a live table on a terminal, a line per change anywhere else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from podwire.cli import output, rows
from podwire.kube.objects import Event, Pod

if TYPE_CHECKING:
    from rich.console import RenderableType

HEADINGS = ("NAME", "READY", "STATUS", "RESTARTS", "IPS", "AGE", "REASON")
_RECENT = 6


@dataclass(frozen=True, slots=True)
class Picture:
    """What there is to see at one moment: pods, the newest events last, and problems of the sources."""

    pods: tuple[Pod, ...] = ()
    events: tuple[Event, ...] = ()
    problems: tuple[str, ...] = ()


class View(Protocol):
    """Something that shows pictures."""

    def show(self, picture: Picture) -> None:
        """Show ``picture`` in place of the one before."""

    def close(self) -> None:
        """Leave the last picture standing."""


def pod_line(pod: Pod, at: datetime) -> tuple[str, ...]:
    """The cells of a pod under :data:`HEADINGS`."""
    name = pod.metadata.name
    if pod.metadata.namespace != "default":
        name = f"{pod.metadata.namespace}/{name}"
    return (
        name,
        rows.ready(pod),
        rows.status(pod),
        str(rows.restarts(pod)),
        ",".join(rows.addresses(pod)) or "-",
        rows.age(pod.metadata.creation_timestamp or pod.status.start_time, at),
        rows.reason(pod),
    )


def ordered(pods: Iterable[Pod]) -> list[Pod]:
    """Pods by namespace and name."""
    return sorted(pods, key=lambda pod: (pod.metadata.namespace, pod.metadata.name))


def event_line(event: Event) -> str:
    """An event in one line, without its age."""
    about = event.involved_object
    who = f"{about.kind.lower()}/{about.name}: " if about.name else ""
    return f"{event.type} {event.reason}: {who}{event.message}"


def print_pods(pods: Iterable[Pod]) -> None:
    """The table once, on standard output."""
    at = rows.now()
    output.print_table(HEADINGS, [pod_line(pod, at) for pod in ordered(pods)])


@dataclass
class LineView:
    """A line for every pod whose state changed, for each new event that warns, and for each new problem."""

    _pods: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _warnings: dict[str, int] = field(default_factory=dict)
    _problems: frozenset[str] = frozenset()

    def show(self, picture: Picture) -> None:
        """Print what is new."""
        at = rows.now()
        present = {pod.metadata.uid for pod in picture.pods}
        for uid in self._pods.keys() - present:
            output.say(f"{self._pods.pop(uid)[0]} removed")
        for pod in ordered(picture.pods):
            name, ready, status, restarts, addresses, _, reason = cells = pod_line(pod, at)
            known = cells[:5] + cells[6:]
            if self._pods.get(pod.metadata.uid) != known:
                self._pods[pod.metadata.uid] = known
                times = f" restarts={restarts}" if restarts != "0" else ""
                words = (name, ready, status, addresses.strip("-"), reason)
                output.say(" ".join(filter(None, words)) + times)
        for event in picture.events:
            if event.type == "Normal" or self._warnings.get(event.metadata.name) == event.count:
                continue
            self._warnings[event.metadata.name] = event.count
            if event.message not in picture.problems:
                output.say(event_line(event))
        for problem in picture.problems:
            if problem not in self._problems:
                output.say(f"problem: {problem}")
        self._problems = frozenset(picture.problems)

    def close(self) -> None:
        """Nothing is kept open."""


class TableView:
    """The live table of a terminal."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.live import Live

        self._title = title
        self._live = Live(console=Console(), auto_refresh=False, vertical_overflow="visible")
        self._live.start()

    def show(self, picture: Picture) -> None:
        """Draw the table anew."""
        self._live.update(render(picture, self._title, rows.now()), refresh=True)

    def close(self) -> None:
        """Let go of the terminal."""
        self._live.stop()


def render(picture: Picture, title: str, at: datetime) -> RenderableType:
    """The table, the problems and the last events, for rich to print."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading in HEADINGS:
        table.add_column(heading, no_wrap=heading in {"READY", "RESTARTS", "AGE"}, overflow="fold")
    for pod in ordered(picture.pods):
        name, ready, status, *rest = pod_line(pod, at)
        table.add_row(name, ready, Text(status, output.style_of(status)), *map(Text, rest))
    parts: list[RenderableType] = [table]
    if not picture.pods:
        parts.append(Text("no pods yet", "dim"))
    parts += [Text(f"! {problem}", "red") for problem in picture.problems]
    recent = _recent(picture.events)
    if recent:
        parts.append(Text())
    for event in recent:
        seen = rows.age(event.last_timestamp, at)
        parts.append(Text(f"{seen:>5}  {event_line(event)}", "dim" if event.type == "Normal" else "yellow"))
    return Group(*parts)


def _recent(events: Sequence[Event]) -> Sequence[Event]:
    return events[-_RECENT:]
