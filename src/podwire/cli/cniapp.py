"""The command line of ``podwire cni``: names, arguments, options, help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from podwire.cli.arguments import Root, examples
from podwire.cli.locations import Locations

cni = typer.Typer(
    help="The verbs of cnitool, and a test of CNI plugins.\n\nThey attach a network namespace to a CNI"
    " network, check that, and detach it.",
    epilog=examples(
        "cni add net /run/netns/blue              the network named net of /etc/cni/net.d",
        "cni add net /run/netns/blue --trace      shows each plugin's turn",
        "cni del net /run/netns/blue",
        "cni conformance /opt/cni/bin/bridge",
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
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
    str, typer.Argument(metavar="NETNS", help="Taken as cnitool takes it; it has no meaning here.")
]


def _cni(verb: str, network: str, netns: str, *, root: str | None, **options: Any) -> int:
    from podwire.cli import cnitool

    return cnitool.run(verb, network, netns, cnitool.Options(places=Locations.of(root), **options))


def _attachment_verb(verb: str, what: str) -> None:
    """Add one of the verbs that are about NETNS in NETWORK; they take the same arguments and options."""

    @cni.command(verb, help=_CNI_HELP.format(what=what))
    def command(
        *,
        network: Network,
        netns: Netns,
        ifname: Ifname = "eth0",
        output: CNIOutput = "",
        trace: Trace = False,
        root: Root = None,
    ) -> int:
        return _cni(verb, network, netns, ifname=ifname, output=output, trace=trace, root=root)


_attachment_verb("add", "Attach NETNS to NETWORK and print the result.")
_attachment_verb("check", "Check that NETNS is attached to NETWORK as it should be.")
_attachment_verb("del", "Detach NETNS from NETWORK; NETNS may be gone already.")


@cni.command(
    "gc",
    epilog=examples("cni gc net", "cni gc net --keep 5f3c/eth0 --keep 77aa", "cni gc net --keep-none"),
)
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
    """Ask the plugins of NETWORK whether they could serve an ADD.

    Silent, and exit status 0, if so.
    """
    return _cni("status", network, "", output=output, trace=trace, root=root)


@cni.command("version")
def cni_version(*, network: Network, output: CNIOutput = "", root: Root = None) -> int:
    """Print which versions of CNI each plugin of NETWORK speaks."""
    return _cni("version", network, "", output=output, root=root)


@cni.command("validate")
def cni_validate(*, network: Network, output: CNIOutput = "", root: Root = None) -> int:
    """Check that each plugin of NETWORK is there.

    And that it speaks the network's version; prints its capabilities.
    """
    return _cni("validate", network, "", output=output, root=root)


@cni.command(
    "conformance",
    epilog=examples(
        "cni conformance /opt/cni/bin/bridge",
        "cni conformance bridge,portmap --conf net.conflist -o json",
    ),
)
def cni_conformance(
    *,
    plugins: Annotated[
        list[str],
        typer.Argument(
            metavar="PLUGIN",
            help="Paths, or types searched in CNI_PATH; several with commas between them are a chain.",
            show_default=False,
        ),
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
        float,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            min=0.1,
            help="How long one call may take, or the start of --daemon.",
        ),
    ] = 20,
    fail_on: Annotated[
        str,
        typer.Option(
            "--fail-on",
            metavar="WEIGHT",
            help="The least weight of a finding that makes the exit status 1: violation, weakness or note.",
        ),
    ] = "note",
    daemon: Annotated[
        str,
        typer.Option(
            "--daemon",
            metavar="COMMAND",
            help="What the plugin hands its work to: started on each check's host, and ended with it.",
        ),
    ] = "",
    ready: Annotated[
        Path | None,
        typer.Option(
            "--ready",
            metavar="FILE",
            help="The file or socket that is there when --daemon serves.",
            show_default=False,
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show what passed and what does not apply as well.")
    ] = False,
) -> int:
    """Test CNI plugins, anybody's, against the specification.

    Versions 0.1.0 to 1.1.0. Each check runs on an empty host of its own, in new network and mount namespaces,
    so that nothing of this machine is touched; that needs root. The exit status is 1 where there is a
    finding.
    """
    from podwire.cli import conformance as command

    return command.run(
        plugins,
        conf=conf,
        output=output,
        junit=junit,
        only=tuple(check or ()),
        timeout=timeout,
        fail_on=fail_on,
        verbose=verbose,
        daemon=daemon,
        ready=ready,
    )
