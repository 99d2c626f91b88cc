"""The command line of ``podwire agent`` and ``podwire gc``: names, arguments, options, help."""

from __future__ import annotations

from typing import Annotated

import typer

from podwire.cli.arguments import Root, examples
from podwire.cli.locations import Locations

agent = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
Output = Annotated[str, typer.Option("--output", "-o", metavar="json", help="json: the answer as it is.")]


@agent.callback(
    epilog=examples(
        "agent                       serves until SIGTERM or Ctrl-C",
        "agent --config agent.yaml",
        "agent status -o json",
    )
)
def serve(
    context: typer.Context,
    *,
    config: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="Settings, as YAML.", show_default=False)
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="A log line for every request.")] = False,
    root: Root = None,
) -> int:
    """The node's network daemon: runs the CNI plugins for runtimes.

    All in one process, for the programs that `podwire install` puts in place; they call on
    /run/podwire/agent.sock. It serves until SIGTERM or Ctrl-C and logs to stderr. Pods keep their network
    while it is away.
    """
    if context.invoked_subcommand is not None:
        context.obj = root
        return 0
    from podwire.cli import agent as command

    return command.serve(Locations.of(root), config, verbose=verbose)


@agent.command()
def status(context: typer.Context, *, output: Output = "", root: Root = None) -> int:
    """Tell what the agent runs and has done, and what is wrong.

    The exit status is 1 if something is wrong.
    """
    from podwire.cli import agent as command

    return command.status(Locations.of(root or context.obj), output)


def gc(
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list it.")] = False,
    output: Output = "",
    root: Root = None,
) -> int:
    """Remove what no live network namespace needs.

    What is left of interrupted ADDs, earlier boots, and lost pods. It goes by the agent's records, so the
    agent must run. What others made is never touched.
    """
    from podwire.cli import agent as command

    return command.collect(Locations.of(root), output, dry_run=dry_run)
