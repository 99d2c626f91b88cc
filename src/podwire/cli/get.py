"""``podwire get``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from podwire.cli import nodeapi, output, rows, selectors
from podwire.cli.errors import CommandError, usage
from podwire.cli.locations import Locations
from podwire.kube import printing
from podwire.kube.objects import Pod

if TYPE_CHECKING:
    from podwire.node.client import NodeClient

KINDS = {
    **dict.fromkeys(("pods", "pod", "po"), "pods"),
    **dict.fromkeys(("nodes", "node", "no"), "nodes"),
    **dict.fromkeys(("events", "event", "ev"), "events"),
}
FORMS = ("", "wide", "json", "yaml", "name")


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
        await _events(client, query)
        return 0

    if query.watch and kind != "pods":
        raise usage(f"--watch goes with pods, not with {kind}")
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
    _print_pods(found, query, single=bool(name), headings=query.headers)
    return found


def _print_objects(objects: Sequence[dict[str, Any]], form: str, *, single: bool) -> None:
    """One object as it is, several as a List."""
    document = objects[0] if single else printing.object_list(objects)
    print((printing.to_json if form == "json" else printing.to_yaml)(document), end="", flush=True)


def _print_pods(pods: Sequence[Pod], query: Query, *, single: bool, headings: bool) -> None:
    if query.structured:
        _print_objects([printing.to_builtins(pod) for pod in pods], query.output, single=single)
    elif query.output == "name":
        for pod in pods:
            print(f"pod/{pod.metadata.name}", flush=True)
    else:
        wide = query.output == "wide"
        at = rows.now()
        output.print_table(
            rows.pod_headings(wide=wide, namespace=query.all_namespaces),
            [rows.pod_row(pod, at, wide=wide, namespace=query.all_namespaces) for pod in pods],
            shown=headings,
        )


async def _watch(
    client: NodeClient, query: Query, shown: Sequence[Pod], name: str, selector: selectors.Selector
) -> None:
    """Print a line (or an object) for every pod that changed after ``shown``."""
    last = {pod.metadata.uid: _print_key(pod, query) for pod in shown}
    exact = shown[0].metadata.name if name else ""
    async for _, pod in client.watch_pods(query.scope):
        if exact and pod.metadata.name != exact:
            continue
        if not selector.matches(pod.metadata.labels):
            continue
        key = _print_key(pod, query)
        if last.get(pod.metadata.uid) == key:
            continue
        last[pod.metadata.uid] = key
        _print_pods([pod], query, single=True, headings=False)


def _print_key(pod: Pod, query: Query) -> object:
    """What a printed pod shows, without its age."""
    if query.structured:
        return pod
    row = rows.pod_row(pod, rows.now(), wide=True)
    return (*row[:4], *row[5:], rows.addresses(pod))


async def _nodes(client: NodeClient, query: Query, name: str) -> None:
    nodes = [node for node in await client.nodes() if not name or node["metadata"]["name"] == name]
    if name and not nodes:
        raise CommandError(f'node "{name}" not found')
    if query.structured:
        _print_objects(nodes, query.output, single=bool(name))
        return
    if query.output == "name":
        for node in nodes:
            print(f"node/{node['metadata']['name']}")
        return
    output.print_table(
        rows.node_headings(wide=query.output == "wide"),
        [rows.node_row(node, rows.now(), wide=query.output == "wide") for node in nodes],
        shown=query.headers,
    )


async def _events(client: NodeClient, query: Query) -> None:
    events = list(await client.events(query.scope))
    events.sort(key=lambda event: event.last_timestamp or "")
    if query.structured:
        _print_objects([printing.to_builtins(event) for event in events], query.output, single=False)
        return
    if query.output == "name":
        for event in events:
            print(f"event/{event.metadata.name}")
        return
    if not events:
        output.note("No events found.")
        return
    output.print_table(
        rows.event_headings(namespace=query.all_namespaces),
        [rows.event_row(event, rows.now(), namespace=query.all_namespaces) for event in events],
        status="TYPE",
        shown=query.headers,
    )
