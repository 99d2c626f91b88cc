"""The command line: names, arguments, options, help. What a command does stands in its own module."""

from __future__ import annotations

from typing import Annotated

import typer

from podwire.cli import arguments
from podwire.cli.agentapp import agent, gc
from podwire.cli.arguments import Root, examples
from podwire.cli.cniapp import cni
from podwire.cli.installapp import INSTALL_EXAMPLES, install
from podwire.cli.locations import Locations

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


def _print_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def _options(
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end."),
    ] = False,
) -> None:
    pass


@app.command(
    epilog=examples(
        "up examples/hello               a live table; Ctrl-C leaves the pods running",
        "up DIR --detach                 in the background",
        "up https://example.com/pods     a Pod or a PodList",
        "up pod.yaml --once && podwire get pods",
    )
)
def up(
    *,
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH|URL",
            help="Manifests: directories, watched for changes, single files, or URLs, asked each 20 s."
            "  [default: ./manifests]",
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
    url_headers: Annotated[
        list[str] | None,
        typer.Option(
            "--manifest-url-header",
            metavar="NAME:VALUE",
            help="A header for each URL's requests; may be given several times.",
            show_default=False,
        ),
    ] = None,
    apiserver: Annotated[
        bool,
        typer.Option(
            "--apiserver/--no-apiserver",
            help="Serve the Kubernetes API for kubectl on a loopback port, and run the pods made there.",
        ),
    ] = True,
    kubeconfig: Annotated[
        str,
        typer.Option(
            "--kubeconfig",
            metavar="FILE",
            help="Join that API server as a node, in place of the one inside.",
            show_default=False,
        ),
    ] = "",
    kubelet_port: arguments.KubeletPort = None,
    client_ca_file: arguments.ClientAuthority = "",
    tls_cert_file: arguments.Certificate = "",
    tls_private_key_file: arguments.PrivateKey = "",
    root: Root = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what the node does.")] = False,
    ready_fd: Annotated[int, typer.Option("--ready-fd", hidden=True)] = -1,
) -> int:
    """Be a node: run the pods of manifests and of an API server.

    They are shown in a live table. Ctrl-C ends the node; its pods go on running, and the next `podwire up`
    takes them over. `podwire down` stops and removes everything.
    """
    from podwire.cli import up as command
    from podwire.cli.kubelet import KubeletOptions

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
            url_headers=tuple(url_headers or ()),
            apiserver=apiserver,
            kubeconfig=kubeconfig,
            kubelet=KubeletOptions(
                port=kubelet_port,
                client_ca=client_ca_file,
                certificate=tls_cert_file,
                key=tls_private_key_file,
            ),
        )
    )


@app.command(epilog=examples("down", "down --timeout 0                 without grace"))
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
    """Stop and remove all of it: node, pods, links, rules, files.

    Works whether the node runs, was killed, or never was. What `podwire up` changed on this machine is put
    back as it was.
    """
    from podwire.cli import down as command

    return command.run(Locations.of(root), timeout=timeout)


@app.command(
    epilog=examples(
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


@app.command(epilog=examples("describe pod web", "describe node"))
def describe(
    *,
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="pod or node; or KIND/NAME.", show_default=False)
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which one.", show_default=False)] = "",
    namespace: Namespace = None,
    root: Root = None,
) -> int:
    """Tell all about a pod or the node.

    State, containers, addresses, conditions, events.
    """
    from podwire.cli import describe as command

    return command.run(kind, name, namespace, Locations.of(root))


@app.command(
    epilog=examples(
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


@app.command("exec", epilog=examples("exec web -- ip address", "exec -it web -- sh"))
def exec_(
    *,
    pod: PodName,
    program: Annotated[
        list[str],
        typer.Argument(metavar="CMD", help="The program and its arguments, after `--`.", show_default=False),
    ],
    stdin: Annotated[bool, typer.Option("--stdin", "-i", help="Pass standard input on.")] = False,
    tty: Annotated[bool, typer.Option("--tty", "-t", help="Give the program a terminal.")] = False,
    container: ContainerName = "",
    namespace: Namespace = None,
    root: Root = None,
) -> int:
    """Run a program inside a container.

    Its exit status becomes this command's.
    """
    from podwire.cli import execute as command

    return command.run(
        pod, tuple(program), command.Options(container, stdin, tty), namespace, Locations.of(root)
    )


app.command(epilog=INSTALL_EXAMPLES)(install)


@app.command(
    epilog=examples("apiserver", "apiserver --listen 127.0.0.1:0 --listen unix:/run/podwire/api.sock")
)
def apiserver(
    *,
    listen: Annotated[
        list[str] | None,
        typer.Option(
            "--listen",
            metavar="ADDRESS",
            help="HOST:PORT on loopback, with TLS, or unix:PATH; may be given several times."
            "  [default: 127.0.0.1:6443]",
            show_default=False,
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="A log line for every request.")] = False,
    root: Root = None,
) -> int:
    """Serve the Kubernetes API for this machine.

    Its objects are in a file. It serves until SIGTERM or Ctrl-C.
    """
    from podwire.cli import apiserver as command

    return command.serve(Locations.of(root), listen or [command.DEFAULT], verbose=verbose)


@app.command()
def version() -> int:
    """Print the version."""
    from podwire import __version__

    print(f"podwire {__version__}")
    return 0


app.add_typer(cni, name="cni")
app.add_typer(agent, name="agent")
app.command(epilog=examples("gc --dry-run"))(gc)
