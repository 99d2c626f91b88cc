"""The command line: names, arguments, options, help. What a command does stands in its own module."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from podwire.cli import arguments
from podwire.cli.locations import Locations

Root = Annotated[
    str | None,
    typer.Option(
        "--root",
        metavar="DIR",
        help="Keep state in DIR/lib and sockets in DIR/run instead of /var/lib/podwire and /run/podwire."
        "  [env var: PODWIRE_ROOT]",
        show_default=False,
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NAME",
        callback=arguments.namespace,
        help="The pod's namespace.  [default: default]",
    ),
]
ContainerName = Annotated[
    str, typer.Option("--container", "-c", metavar="NAME", help="The container, where the pod has several.")
]
PodName = Annotated[
    str,
    typer.Argument(
        metavar="POD",
        help="The pod's name, or the name in its manifest if that is unique.",
        show_default=False,
    ),
]


app = typer.Typer(
    name="podwire",
    help="The pod network of a Kubernetes node: runs Pod manifests on this machine, with real network"
    " namespaces, addresses and host ports.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
cni = typer.Typer(
    help="The verbs of cnitool: attach a network namespace to a CNI network, check that, detach it; and the"
    " test of CNI plugins against the specification.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(cni, name="cni")


def _examples(*lines: str) -> str:
    """Command lines to copy, kept as they are (the mark is click's)."""
    return "\b\nExamples:\n" + "\n".join(f"  podwire {line}" for line in lines)


@app.command(
    epilog=_examples(
        "up examples/hello               a live table; Ctrl-C leaves the pods running",
        "up DIR --detach                 in the background",
        "up pod.yaml --once && podwire get pods",
    )
)
def up(
    *,
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH",
            help="Manifests: directories, watched for changes, or single files.  [default: ./manifests]",
            show_default=False,
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return once the node is ready; it runs in the background.")
    ] = False,
    once: Annotated[
        bool,
        typer.Option(
            "--once",
            help="Wait until every pod is Running or Succeeded, print the table and end; exit status 1 if one"
            " fails or a manifest is broken. The pods go on running until `podwire down`.",
        ),
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            min=1,
            callback=arguments.seconds("--timeout"),
            help="How long --once waits.  [default: 120]",
        ),
    ] = None,
    pod_cidr: Annotated[
        str,
        typer.Option(
            "--pod-cidr",
            metavar="CIDR[,CIDR]",
            help="Where pod addresses come from: one range, or one of each family.",
        ),
    ] = "10.201.0.0/16,fd5a:201::/64",
    node_name: Annotated[
        str | None,
        typer.Option("--node-name", metavar="NAME", help="The node's name.  [default: the host's]"),
    ] = None,
    bridge: Annotated[
        str, typer.Option("--bridge", metavar="NAME", help="The bridge that the pods are on.")
    ] = "podwire0",
    root: Root = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what the node does.")] = False,
    ready_fd: Annotated[int, typer.Option("--ready-fd", hidden=True)] = -1,
) -> int:
    """Be a node: run the pods of the manifests in PATH and show them in a live table.

    Ctrl-C ends the node; its pods go on running, and the next `podwire up` takes them over. `podwire down`
    stops and removes everything.
    """
    from podwire.cli import up as command

    return command.run(
        command.Options(
            paths=tuple(paths or ()),
            detach=detach,
            once=once,
            timeout=timeout,
            pod_cidr=pod_cidr,
            node_name=node_name,
            bridge=bridge,
            places=Locations.of(root),
            verbose=verbose,
            ready_fd=ready_fd,
        )
    )


@app.command(epilog=_examples("down", "down --timeout 0                 without grace"))
def down(
    *,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            min=0,
            callback=arguments.seconds("--timeout"),
            help="The grace period of every pod at most: TERM, then KILL after it.",
        ),
    ] = 10,
    root: Root = None,
) -> int:
    """Stop and remove all of it: the node, its pods, links, rules, addresses and files.

    Works whether the node runs, was killed, or never was. What `podwire up` changed on this machine is put
    back as it was.
    """
    from podwire.cli import down as command

    return command.run(Locations.of(root), timeout=timeout)


@app.command(
    epilog=_examples(
        "get pods -o wide", "get pods -A -w", "get pod web -o json | jq .status.podIPs", "get events"
    )
)
def get(
    *,
    kind: Annotated[
        str,
        typer.Argument(metavar="KIND", help="pods, nodes or events; or KIND/NAME.", show_default=False),
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Only this one.", show_default=False)] = "",
    namespace: Namespace = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Those of every namespace.")
    ] = False,
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="FORM", help="wide, json, yaml or name.", show_default=False),
    ] = "",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on and print every change.")] = False,
    types: Annotated[
        bool,
        typer.Option("--output-watch-events", help="With -w, say what each is: ADDED, MODIFIED, DELETED."),
    ] = False,
    selector: Annotated[
        str,
        typer.Option("--selector", "-l", metavar="k=v,...", help="Only those with these labels."),
    ] = "",
    no_headers: Annotated[bool, typer.Option("--no-headers", help="Leave the heading out.")] = False,
    root: Root = None,
) -> int:
    """List pods, the node, or events, as kubectl does."""
    from podwire.cli import get as command

    return command.run(
        kind,
        command.Query(
            name=name,
            namespace=namespace or "default",
            all_namespaces=all_namespaces,
            output=output,
            watch=watch,
            selector=selector,
            headers=not no_headers,
            types=types,
        ),
        Locations.of(root),
    )


@app.command(epilog=_examples("describe pod web", "describe node"))
def describe(
    *,
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="pod or node; or KIND/NAME.", show_default=False)
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which one.", show_default=False)] = "",
    namespace: Namespace = None,
    root: Root = None,
) -> int:
    """Tell all about a pod or the node: state, containers, addresses, conditions, events."""
    from podwire.cli import describe as command

    return command.run(kind, name, namespace, Locations.of(root))


@app.command(
    epilog=_examples(
        "logs web -f", "logs web -c sidecar --since 5m", "logs -l app=web --all-containers --prefix"
    )
)
def logs(
    *,
    pod: Annotated[
        str,
        typer.Argument(
            metavar="POD", help="The pod's name, or the name in its manifest.", show_default=False
        ),
    ] = "",
    container: ContainerName = "",
    all_containers: Annotated[
        bool, typer.Option("--all-containers", help="Every container of the pod, init containers first.")
    ] = False,
    selector: Annotated[
        str, typer.Option("--selector", "-l", metavar="k=v,...", help="The pods with these labels.")
    ] = "",
    namespace: Namespace = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as the container writes.")] = False,
    tail: Annotated[
        int | None,
        typer.Option(
            "--tail", metavar="N", min=-1, help="Only the last N lines; -1: all.  [default: -1; with -l: 10]"
        ),
    ] = None,
    since: Annotated[
        str,
        typer.Option(
            "--since",
            metavar="DURATION",
            callback=arguments.duration("--since"),
            help="Only what is newer: 30s, 5m, 1h30m.",
        ),
    ] = "",
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Begin each line with its time.")] = False,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="The log of the run before the last restart.")
    ] = False,
    prefix: Annotated[bool, typer.Option("--prefix", help="Begin each line with pod and container.")] = False,
    root: Root = None,
) -> int:
    """Print what a container wrote."""
    from podwire.cli import logs as command

    return command.run(
        pod,
        command.Options(
            container=container,
            all_containers=all_containers,
            selector=selector,
            follow=follow,
            tail=tail,
            since=since,
            timestamps=timestamps,
            previous=previous,
            prefix=prefix,
        ),
        namespace,
        Locations.of(root),
    )


@app.command("exec", epilog=_examples("exec web -- ip address", "exec -it web -- sh"))
def exec_(
    *,
    pod: PodName,
    program: Annotated[
        list[str],
        typer.Argument(metavar="-- CMD [ARG]...", help="The program and its arguments.", show_default=False),
    ],
    stdin: Annotated[bool, typer.Option("--stdin", "-i", help="Pass standard input on.")] = False,
    tty: Annotated[bool, typer.Option("--tty", "-t", help="Give the program a terminal.")] = False,
    container: ContainerName = "",
    namespace: Namespace = None,
    root: Root = None,
) -> int:
    """Run a program inside a container; its exit status becomes this command's."""
    from podwire.cli import execute as command

    return command.run(
        pod, tuple(program), command.Options(container, stdin, tty), namespace, Locations.of(root)
    )


Network = Annotated[
    str,
    typer.Argument(metavar="NETWORK", help="The network's name in its configuration.", show_default=False),
]
Netns = Annotated[
    str,
    typer.Argument(
        metavar="NETNS", help="Path of the network namespace, as /run/netns/NAME.", show_default=False
    ),
]
Ifname = Annotated[
    str,
    typer.Option("--ifname", "-i", envvar="CNI_IFNAME", metavar="NAME", help="The interface's name inside."),
]
CNIOutput = Annotated[
    str, typer.Option("--output", "-o", metavar="json", help="json: errors too are JSON, on stdout.")
]
_CNI_HELP = """{what}

Variables: NETCONFPATH, the directory of configurations (/etc/cni/net.d); CNI_PATH, directories of plugin
programs, separated by colons; CNI_ARGS, K=V;K=V; CAP_ARGS, a JSON object of capability arguments; CNI_IFNAME.

The plugins that Podwire has run inside this process. Where CNI_PATH is set, a program of that name found
there is run instead: what you name yourself wins. Without CNI_PATH, the plugins that Podwire does not have
are looked for in /opt/cni/bin and /usr/lib/cni.

The container ID is `cnitool-` and the first 20 hexadecimal digits of the SHA-512 of the absolute NETNS, as
cnitool has it, and results are cached in /var/lib/cni (with --root in DIR/lib/cni).
"""


Trace = Annotated[
    bool,
    typer.Option(
        "--trace", help="Show on stderr each plugin's time, input and output; with -o json as JSON."
    ),
]
OptionalNetns = Annotated[
    str, typer.Argument(metavar="[NETNS]", help="Taken as cnitool takes it; it has no meaning here.")
]


def _cni(verb: str, network: str, netns: str, *, root: str | None, **options: Any) -> int:
    from podwire.cli import cnitool

    return cnitool.run(verb, network, netns, cnitool.Options(places=Locations.of(root), **options))


@cni.command("add", help=_CNI_HELP.format(what="Attach NETNS to NETWORK and print the result."))
def cni_add(
    *,
    network: Network,
    netns: Netns,
    ifname: Ifname = "eth0",
    output: CNIOutput = "",
    trace: Trace = False,
    root: Root = None,
) -> int:
    """Attach NETNS to NETWORK."""
    return _cni("add", network, netns, ifname=ifname, output=output, trace=trace, root=root)


@cni.command("check", help=_CNI_HELP.format(what="Check that NETNS is attached to NETWORK as it should be."))
def cni_check(
    *,
    network: Network,
    netns: Netns,
    ifname: Ifname = "eth0",
    output: CNIOutput = "",
    trace: Trace = False,
    root: Root = None,
) -> int:
    """Check the attachment of NETNS to NETWORK."""
    return _cni("check", network, netns, ifname=ifname, output=output, trace=trace, root=root)


@cni.command("del", help=_CNI_HELP.format(what="Detach NETNS from NETWORK; NETNS may be gone already."))
def cni_del(
    *,
    network: Network,
    netns: Netns,
    ifname: Ifname = "eth0",
    output: CNIOutput = "",
    trace: Trace = False,
    root: Root = None,
) -> int:
    """Detach NETNS from NETWORK."""
    return _cni("del", network, netns, ifname=ifname, output=output, trace=trace, root=root)


@cni.command("gc")
def cni_gc(
    *,
    network: Network,
    _netns: OptionalNetns = "",
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep",
            metavar="CONTAINER_ID[/IFNAME]",
            help="An attachment to keep (interface eth0 if none is named), once for each; all others go.",
        ),
    ] = None,
    none: Annotated[
        bool, typer.Option("--keep-none", help="Remove every attachment, as cnitool does.")
    ] = False,
    output: CNIOutput = "",
    trace: Trace = False,
    root: Root = None,
) -> int:
    """Remove what is attached to NETWORK and no longer valid.

    Without --keep, what the cache knows stays as long as its network namespace is there.
    """
    kept = () if none else None if keep is None else tuple(keep)
    return _cni("gc", network, "", keep=kept, output=output, trace=trace, root=root)


@cni.command("status")
def cni_status(
    *,
    network: Network,
    _netns: OptionalNetns = "",
    output: CNIOutput = "",
    trace: Trace = False,
    root: Root = None,
) -> int:
    """Ask the plugins of NETWORK whether they could serve an ADD now: silent and 0 if so."""
    return _cni("status", network, "", output=output, trace=trace, root=root)


@cni.command("version")
def cni_version(*, network: Network, output: CNIOutput = "", root: Root = None) -> int:
    """Print which versions of the specification each plugin of NETWORK speaks."""
    return _cni("version", network, "", output=output, root=root)


@cni.command("validate")
def cni_validate(*, network: Network, output: CNIOutput = "", root: Root = None) -> int:
    """Check that each plugin of NETWORK is there and speaks its version; print its capabilities."""
    return _cni("validate", network, "", output=output, root=root)


@cni.command("conformance")
def cni_conformance(
    *,
    plugins: Annotated[
        list[str],
        typer.Argument(metavar="PLUGIN...", help="Paths, or types searched in CNI_PATH.", show_default=False),
    ],
    conf: Annotated[
        Path | None,
        typer.Option(
            "--conf",
            metavar="FILE",
            help="The configuration to test with, list or single.  [default: one that suits the type]",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="json", help="json: a list with an object a check.")
    ] = "",
    junit: Annotated[
        Path | None,
        typer.Option("--junit", metavar="FILE", help="Write JUnit XML to FILE too.", show_default=False),
    ] = None,
    check: Annotated[
        list[str] | None,
        typer.Option("--check", metavar="ID", help="Only this check; may be repeated.", show_default=False),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long one call may take.")
    ] = 20,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show what passed and what does not apply as well.")
    ] = False,
) -> int:
    """Test CNI plugins, anybody's, against the specification (0.1.0 to 1.1.0).

    Each check runs on an empty host of its own, in new network and mount namespaces, so that nothing of this
    machine is touched; that needs root. The exit status is 1 where the specification is violated.
    """
    from podwire.cli import conformance as command

    return command.run(
        plugins,
        conf=conf,
        output=output,
        junit=junit,
        only=tuple(check or ()),
        timeout=timeout,
        verbose=verbose,
    )


@app.command(
    epilog=_examples(
        "install                          into /opt/cni/bin", "install --bin-dir DIR --uninstall"
    )
)
def install(
    bin_dir: Annotated[
        str,
        typer.Option(
            "--bin-dir",
            metavar="DIR",
            callback=arguments.directory("--bin-dir"),
            help="Where the CNI runtime looks for plugins.",
        ),
    ] = "/opt/cni/bin",
    uninstall: Annotated[bool, typer.Option("--uninstall", help="Take them away again.")] = False,
) -> int:
    """Write a program for each CNI plugin, for any CNI runtime to call."""
    from podwire.cli import install as command

    return command.run(Path(bin_dir), uninstall=uninstall)


@app.command()
def version() -> int:
    """Print the version."""
    from podwire import __version__

    print(f"podwire {__version__}")
    return 0
