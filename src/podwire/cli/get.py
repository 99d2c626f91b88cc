"""``podwire get``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from podwire.cli import nodeapi, output, rows, selectors
from podwire.cli.errors import CommandError, usage
from podwire.cli.locations import Locations
from podwire.kube import printing
from podwire.kube.objects import Event, Pod

if TYPE_CHECKING:
    from podwire.node.client import NodeClient

KINDS = {
    **dict.fromkeys(("pods", "pod", "po"), "pods"),
    **dict.fromkeys(("nodes", "node", "no"), "nodes"),
    **dict.fromkeys(("events", "event", "ev"), "events"),
}
FORMS = ("", "wide", "json", "yaml", "name")
NODE_LOOK = 1.0
"""Seconds between two looks at the node with ``get nodes --watch``."""


@dataclass(frozen=True, slots=True)
class Query:
    """Which objects, and in which form."""

    name: str = ""
    namespace: str = "default"
    all_namespaces: bool = False
    output: str = ""
    watch: bool = False
    selector: str = ""
    headers: bool = True
    types: bool = False
    """Say of each change what it is: ADDED, MODIFIED, DELETED."""

    @property
    def scope(self) -> str | None:
        """The namespace to ask for; None means every one."""
        return None if self.all_namespaces else self.namespace

    @property
    def structured(self) -> bool:
        """Whether the objects themselves are wanted."""
        return self.output in {"json", "yaml"}


def kind_of(text: str, name: str) -> tuple[str, str]:
    """The kind that ``text`` (or ``kind/name``) means, and the name."""
    kind, slash, inner = text.partition("/")
    if slash and name:
        raise usage(f"{text} {name}: give the name once, as {kind}/{inner} or {kind} {inner}")
    if kind not in KINDS:
        raise usage(f"{kind or text!r} is not something podwire knows", hint="It knows: pods, nodes, events.")
    if (slash and not inner) or "/" in inner:
        raise usage(f"{text!r}: {'a name' if not inner else 'one name'} is expected after the slash")
    if "/" in name:
        raise usage(f"{name!r} is not a name: it holds a '/'")
    return KINDS[kind], inner or name


def run(kind: str, query: Query, places: Locations) -> int:
    """Print what was asked for."""
    kind, name = kind_of(kind, query.name)
    if query.output not in FORMS:
        raise usage(
            f"--output {query.output!r} is not a form that podwire has",
            hint="It can be: wide, json, yaml, name. For other forms, give the JSON to jq.",
        )
    if name and query.all_namespaces:
        raise usage(f"--all-namespaces and a name ({name}) do not go together: give -n NAMESPACE")
    if query.selector and kind != "pods":
        raise usage(f"--selector {query.selector!r} goes with pods, not with {kind}")
    if query.types and not query.watch:
        raise usage("--output-watch-events goes with --watch")
    selector = selectors.parse(query.selector)

    async def pods(client: NodeClient) -> int:
        shown = await _pods(client, query, name, selector)
        if query.watch:
            await _watch(client, query, shown, name, selector)
        return 0

    async def nodes(client: NodeClient) -> int:
        await _nodes(client, query, name)
        return 0

    async def events(client: NodeClient) -> int:
        await _events(client, query, name)
        return 0

    return nodeapi.ask(places, {"pods": pods, "nodes": nodes, "events": events}[kind])


async def _pods(client: NodeClient, query: Query, name: str, selector: selectors.Selector) -> list[Pod]:
    if name:
        found = [await nodeapi.find_pod(client, name, query.namespace)]
        if not selector.matches(found[0].metadata.labels):
            raise CommandError(f'pod "{name}" does not have the labels {query.selector}')
    else:
        found = [pod for pod in await client.pods(query.scope) if selector.matches(pod.metadata.labels)]
        found.sort(key=lambda pod: (pod.metadata.namespace, pod.metadata.name))
    if not found and not query.structured and not query.watch:
        where = "" if query.all_namespaces else f" in namespace {query.namespace}"
        output.note(f"No pods found{where}.")
        return found
    if not (query.watch and query.structured and not found):
        _print_pods(found, query, single=bool(name) or query.watch, headings=query.headers)
    return found


def _print_objects(objects: Sequence[dict[str, Any]], form: str, *, single: bool) -> None:
    """Each object as it is, or all as a List."""
    for document in objects if single else (printing.object_list(objects),):
        if single and form == "yaml" and len(objects) > 1:
            print("---")
        print((printing.to_json if form == "json" else printing.to_yaml)(document), end="", flush=True)


def _print_pods(
    pods: Sequence[Pod], query: Query, *, single: bool, headings: bool, change: str = "ADDED"
) -> None:
    if query.structured:
        objects = [_typed(printing.to_builtins(pod), query, change) for pod in pods]
        _print_objects(objects, query.output, single=single)
    elif query.output == "name":
        for pod in pods:
            print(f"pod/{pod.metadata.name}{' deleted' if change == 'DELETED' else ''}", flush=True)
    else:
        wide, everywhere = query.output == "wide", query.all_namespaces
        at = rows.now()
        lines = [rows.pod_row(pod, at, wide=wide, namespace=everywhere) for pod in pods]
        heads = rows.pod_headings(wide=wide, namespace=everywhere)
        if change == "DELETED":
            status = heads.index("STATUS")
            lines = [(*line[:status], "Deleted", *line[status + 1 :]) for line in lines]
        if query.types:
            heads, lines = ("EVENT", *heads), [(change, *line) for line in lines]
        output.print_table(heads, lines, shown=headings)


def _typed(item: dict[str, Any], query: Query, change: str) -> dict[str, Any]:
    return {"type": change, "object": item} if query.types else item


async def _watch(
    client: NodeClient, query: Query, shown: Sequence[Pod], name: str, selector: selectors.Selector
) -> None:
    """Print a line (or an object) for every pod that changed after ``shown``; one that is gone is marked."""
    last = {pod.metadata.uid: _print_key(pod, query) for pod in shown}
    exact = shown[0].metadata.name if name else ""
    async for kind, pod in client.watch_pods(query.scope):
        if exact and pod.metadata.name != exact:
            continue
        if not selector.matches(pod.metadata.labels):
            continue
        change = kind
        if kind == "DELETED":
            last.pop(pod.metadata.uid, None)
        else:
            key = _print_key(pod, query)
            if last.get(pod.metadata.uid) == key:
                continue
            change = "MODIFIED" if pod.metadata.uid in last else "ADDED"
            last[pod.metadata.uid] = key
        _print_pods([pod], query, single=True, headings=False, change=change)
    output.note("The node has ended.")


def _print_key(pod: Pod, query: Query) -> object:
    """What a printed pod shows, without its age."""
    if query.structured:
        return pod
    row = rows.pod_row(pod, rows.now(), wide=True)
    return (*row[:4], *row[5:], rows.addresses(pod))


async def _nodes(client: NodeClient, query: Query, name: str) -> None:
    last: object = None
    headings = query.headers
    while True:
        nodes = [node for node in await client.nodes() if not name or node["metadata"]["name"] == name]
        if name and not nodes:
            raise CommandError(f'node "{name}" not found')
        key = [rows.node_row(node, rows.now(), wide=True)[:2] for node in nodes]
        if key != last:
            _print_nodes(nodes, query, single=bool(name) or last is not None, headings=headings)
        if not query.watch:
            return
        last, headings = key, False
        # A node's object is made when it is asked for; there is nothing to wait for.
        await asyncio.sleep(NODE_LOOK)


def _print_nodes(nodes: list[dict[str, Any]], query: Query, *, single: bool, headings: bool) -> None:
    if query.structured:
        _print_objects(nodes, query.output, single=single)
        return
    if query.output == "name":
        for node in nodes:
            print(f"node/{node['metadata']['name']}", flush=True)
        return
    output.print_table(
        rows.node_headings(wide=query.output == "wide"),
        [rows.node_row(node, rows.now(), wide=query.output == "wide") for node in nodes],
        shown=headings,
    )


async def _events(client: NodeClient, query: Query, name: str) -> None:
    events = [event for event in await client.events(query.scope) if name in {"", event.metadata.name}]
    if name and not events:
        raise CommandError(f'event "{name}" not found in namespace "{query.namespace}"')
    events.sort(key=lambda event: event.last_timestamp or "")
    if not events and not query.structured and not query.watch:
        where = "" if query.all_namespaces else f" in namespace {query.namespace}"
        output.note(f"No events found{where}.")
        return
    if events or not query.watch:
        _print_events(events, query, single=bool(name) or query.watch, headings=query.headers)
    if not query.watch:
        return
    seen = {event.metadata.name: event.count for event in events}
    async for _, event in client.watch_events(query.scope):
        known = seen.get(event.metadata.name)
        if known == event.count or name not in {"", event.metadata.name}:
            continue
        seen[event.metadata.name] = event.count
        _print_events(
            [event], query, single=True, headings=False, change="ADDED" if known is None else "MODIFIED"
        )
    output.note("The node has ended.")


def _print_events(
    events: Sequence[Event], query: Query, *, single: bool, headings: bool, change: str = "ADDED"
) -> None:
    if query.structured:
        objects = [_typed(printing.to_builtins(event), query, change) for event in events]
        _print_objects(objects, query.output, single=single)
    elif query.output == "name":
        for event in events:
            print(f"event/{event.metadata.name}", flush=True)
    else:
        heads = rows.event_headings(namespace=query.all_namespaces)
        lines = [rows.event_row(event, rows.now(), namespace=query.all_namespaces) for event in events]
        if query.types:
            heads, lines = ("EVENT", *heads), [(change, *line) for line in lines]
        output.print_table(heads, lines, status="TYPE", shown=headings)
