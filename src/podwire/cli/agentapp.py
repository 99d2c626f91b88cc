"""The command line of ``podwire agent`` and ``podwire gc``: names, arguments, options, help."""

from __future__ import annotations

from typing import Annotated

import typer

from podwire.cli.arguments import Root
from podwire.cli.locations import Locations

agent = typer.Typer(
    help="The node's network daemon: runs the CNI plugins in one process, for the programs of runtimes.",
    invoke_without_command=True,
    rich_markup_mode=None,
)
Output = Annotated[str, typer.Option("--output", "-o", metavar="json", help="json: the answer as it is.")]


@agent.callback()
def serve(
    context: typer.Context,
    *,
    config: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="Settings, as YAML.", show_default=False)
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="A log line for every request.")] = False,
    root: Root = None,
) -> int:
    """Serve plugins on /run/podwire/agent.sock until SIGTERM or Ctrl-C; pods keep their network.

    Without a command this is the agent itself. It logs to stderr.
    """
    if context.invoked_subcommand is not None:
        context.obj = root
        return 0
    from podwire.cli import agent as command

    return command.serve(Locations.of(root), config, verbose=verbose)


@agent.command()
def status(context: typer.Context, *, output: Output = "", root: Root = None) -> int:
    """Tell what the agent runs, what it has done, and what is wrong; exit status 1 if something is."""
    from podwire.cli import agent as command

    return command.status(Locations.of(root or context.obj), output)


def gc(
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list it.")] = False,
    output: Output = "",
    root: Root = None,
) -> int:
    """Remove what no live network namespace needs: of interrupted ADDs, earlier boots, and lost pods.

    It goes by the agent's records, so the agent must run. What others made is never touched.
    """
    from podwire.cli import agent as command

    return command.collect(Locations.of(root), output, dry_run=dry_run)
