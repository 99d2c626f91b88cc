"""The command line of ``podwire install``: names, arguments, options, help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from podwire.cli import arguments
from podwire.cli.arguments import Root, examples
from podwire.cli.locations import Locations

INSTALL_EXAMPLES = examples(
    "install                                    into /opt/cni/bin and /etc/cni/net.d",
    "install --dry-run --force                  what would become of the plugins that are there",
    "install --subnet 10.1.0.0/16 --mode bridge",
    "install --uninstall                        puts back what was there before",
)


def install(
    *,
    bin_dir: Annotated[
        str,
        typer.Option(
            "--bin-dir",
            metavar="DIR",
            callback=arguments.directory("--bin-dir"),
            help="Where the CNI runtime looks for plugins.",
        ),
    ] = "/opt/cni/bin",
    conf_dir: Annotated[
        str,
        typer.Option(
            "--conf-dir",
            metavar="DIR",
            callback=arguments.directory("--conf-dir"),
            help="Where the CNI runtime looks for networks.",
        ),
    ] = "/etc/cni/net.d",
    subnet: Annotated[
        str,
        typer.Option(
            "--subnet",
            metavar="CIDR[,CIDR]",
            help="Where the network's addresses come from: one range, or one of each family."
            "  [default: 10.202.0.0/16,fd5a:202::/64]",
            show_default=False,
        ),
    ] = "",
    mode: Annotated[str, typer.Option("--mode", metavar="MODE", help="routed or bridge.")] = "routed",
    mtu: Annotated[
        int, typer.Option("--mtu", metavar="BYTES", min=0, max=65535, help="0: as the host's uplink.")
    ] = 0,
    socket: Annotated[
        str | None,
        typer.Option(
            "--socket",
            metavar="PATH",
            help="The agent's socket.  [default: /run/podwire/agent.sock]",
            show_default=False,
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files of others, and keep them for --uninstall.")
    ] = False,
    uninstall: Annotated[bool, typer.Option("--uninstall", help="Take it all away again.")] = False,
    no_conflist: Annotated[
        bool, typer.Option("--no-conflist", help="The programs only, no network.")
    ] = False,
    no_standalone: Annotated[
        bool, typer.Option("--no-standalone", help="Without what serves a call when the agent is gone.")
    ] = False,
    no_agent: Annotated[
        bool,
        typer.Option(
            "--no-agent",
            help="Python programs that know no agent, and take longer to start. Implies --no-conflist.",
        ),
    ] = False,
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            min=0,
            callback=arguments.seconds("--wait"),
            help="How long the agent may take to be ready: the network is written only then.",
        ),
    ] = 30,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="json", help="json: what became of each file.")
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    root: Root = None,
) -> int:
    """Put Podwire's plugins in the place of the reference ones.

    They serve any CNI runtime, in its own networks or the one that is written with them. All of the programs
    are put in place, or none. The network's file appears when the agent can serve.
    """
    from podwire.cli import install as command

    return command.run(
        command.Options(
            bin_dir=Path(bin_dir).absolute(),
            conf_dir=Path(conf_dir).absolute(),
            socket=Locations.of(root).agent_socket if socket is None else Path(socket),
            subnet=subnet,
            mode=mode,
            mtu=mtu,
            force=force,
            uninstall=uninstall,
            conflist=not (no_conflist or no_agent),
            standalone=not no_standalone,
            agent=not no_agent,
            wait=wait,
            output=output,
            dry_run=dry_run,
        )
    )
