"""``podwire install``: our plugins in the place of the reference ones, and a network that uses them."""

from __future__ import annotations

import ipaddress
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from podwire.cli.errors import CommandError, usage
from podwire.cli.output import note

if TYPE_CHECKING:
    from podwire.plugins.conflist import Network
    from podwire.plugins.installing import Change

_TICK = 0.1
_ANSWER_SECONDS = 5.0


@dataclass(frozen=True)
class Options:
    """The command line."""

    bin_dir: Path
    conf_dir: Path
    socket: Path
    subnet: str = ""
    mode: str = "routed"
    mtu: int = 0
    force: bool = False
    uninstall: bool = False
    conflist: bool = True
    standalone: bool = True
    agent: bool = True
    wait: float = 30.0
    output: str = ""
    dry_run: bool = False


def run(options: Options) -> int:
    """Install or uninstall; the exit status is 1 where the network could not be put in place yet."""
    if options.output not in {"", "json"}:
        raise usage(f"--output {options.output!r}: json is the only form")
    done = _guarded(lambda: _uninstalled(options) if options.uninstall else _installed(options))
    if options.uninstall:
        _tell(options, done, "")
        return 0
    reason = ""
    if options.conflist:
        reason = "" if options.dry_run else _wait(options)
        if not reason:
            done = (*done, *_guarded(lambda: _network_installed(options)))
    _tell(options, done, reason)
    if not reason:
        _tell_order(options)
        return 0
    raise CommandError(
        f"{_conflist(options)} is not written: {reason}",
        hint="Start the agent (`systemctl start podwire-agent`, or `podwire agent`) and run this again,"
        " or without a network: --no-conflist.",
    )


def _installed(options: Options) -> tuple[Change, ...]:
    from podwire.plugins import installing, launchers, shims

    network = _network(options)
    try:
        files = (
            installing.programs(options.bin_dir, options.socket, standalone=options.standalone)
            if options.agent
            else installing.launcher_programs(options.bin_dir)
        )
    except shims.ShimMissing as error:
        raise CommandError(
            str(error),
            hint="Install a wheel of podwire, or in a clone: apt-get install gcc musl-tools; make shim."
            " Or --no-agent.",
        ) from error
    except ValueError as error:
        raise usage(f"--socket {error}") from error
    if options.conflist:  # what would be refused at the end is refused before anything is changed
        _network_planned(options, network)
    unwanted = () if options.standalone and options.agent else (options.bin_dir / launchers.STANDALONE,)
    act = installing.plan if options.dry_run else None
    if act is not None:
        return act(files, installing.is_our_program, force=options.force, unwanted=unwanted)
    return installing.install(
        options.bin_dir, files, installing.is_our_program, force=options.force, unwanted=unwanted
    )


def _network_planned(options: Options, network: Network) -> tuple[Change, ...]:
    from podwire.plugins import conflist, installing

    file = installing.File(_conflist(options), conflist.text(network), 0o644)
    return installing.plan([file], conflist.is_ours, force=options.force)


def _network_installed(options: Options) -> tuple[Change, ...]:
    from podwire.plugins import conflist, installing

    network = _network(options)
    if options.dry_run:
        return _network_planned(options, network)
    file = installing.File(_conflist(options), conflist.text(network), 0o644)
    return installing.install(options.conf_dir, [file], conflist.is_ours, force=options.force)


def _uninstalled(options: Options) -> tuple[Change, ...]:
    """The network first: from then on no runtime asks for what goes next."""
    from podwire.plugins import conflist, installing

    act = installing.removal if options.dry_run else installing.uninstall
    network: tuple[Change, ...] = ()
    if options.conflist:
        network = act(options.conf_dir, [conflist.NAME], conflist.was_ours, keep=conflist.is_edited)
    names = installing.names_of_ours(options.bin_dir)
    return (*network, *act(options.bin_dir, names, installing.is_our_program))


def _network(options: Options) -> Network:
    from podwire.plugins.conflist import MODES, SUBNETS, Network

    if options.mode not in MODES:
        raise usage(f"--mode {options.mode!r}: one of {', '.join(MODES)} is expected")
    subnets = tuple(options.subnet.split(",")) if options.subnet else SUBNETS
    families = []
    for text in subnets:
        try:
            families.append(ipaddress.ip_network(text).version)
        except ValueError as error:
            raise usage(f"--subnet {options.subnet}: {error}") from error
    if len(set(families)) != len(families):
        raise usage(f"--subnet {options.subnet}: one range of each family at most is expected")
    return Network(subnets, options.mode, options.mtu)


def _conflist(options: Options) -> Path:
    from podwire.plugins.conflist import NAME

    return options.conf_dir / NAME


def _wait(options: Options) -> str:
    """Wait until the agent can serve: why it cannot, at the end of the time; empty if it can."""
    until = time.monotonic() + options.wait
    told = False
    while True:
        reason = _not_ready(options.socket)
        if not reason or time.monotonic() >= until:
            return reason
        if not told:
            note(f"waiting for the agent on {options.socket} ({options.wait:g} s at most): {reason}")
            told = True
        time.sleep(_TICK)


def _not_ready(socket: Path) -> str:
    """Why the agent cannot serve now; empty if it can."""
    from podwire.agent import asking

    try:
        found = asking.ask(socket, "GET", "/readyz", _ANSWER_SECONDS)
    except asking.AgentError as error:
        return str(error)
    if found["ready"]:
        return ""
    problems = "; ".join(f"{each['what']}: {each['why']}" for each in found["problems"])
    return f"the agent on {socket} is not ready: {problems}"


def _guarded(act: Callable[[], tuple[Change, ...]]) -> tuple[Change, ...]:
    from podwire.plugins.installing import Foreign

    try:
        return act()
    except Foreign as error:
        raise CommandError(
            f"not podwire's, and left as they are: {error}"
            if len(error.paths) > 1
            else f"{error}: not podwire's",
            hint="--force replaces and keeps them; --uninstall puts them back. Nothing was changed.",
        ) from error
    except OSError as error:
        hint = "Try it with sudo." if isinstance(error, PermissionError) and os.geteuid() != 0 else ""
        where = f"{os.fsdecode(error.filename)}: " if error.filename is not None else ""
        raise CommandError(f"{where}{error.strerror}", hint=hint) from error


def _tell(options: Options, changes: tuple[Change, ...], reason: str) -> None:
    if options.output == "json":
        said = {
            "dryRun": options.dry_run,
            "socket": str(options.socket),
            "changes": [
                {
                    "path": str(each.path),
                    "action": each.action,
                    **({"backup": str(each.backup)} if each.backup else {}),
                }
                for each in changes
            ],
            "notReady": reason,
        }
        print(json.dumps(said, indent=2))
        return
    shown = [each for each in changes if each.action != "unchanged"]
    for each in shown:
        print(f"{'would be ' if options.dry_run else ''}{_words(each)}")
    if not shown:
        print(
            f"nothing to do in {options.bin_dir}" + (f" and {options.conf_dir}" if options.conflist else "")
        )


def _tell_order(options: Options) -> None:
    """Runtimes take the first network in the directory's order: say so if that is another one."""
    if not options.conflist or not options.conf_dir.is_dir():
        return
    kinds = {".conflist", ".conf", ".json"}
    first = min((path.name for path in options.conf_dir.iterdir() if path.suffix in kinds), default="")
    if first and first < _conflist(options).name:
        note(
            f"{options.conf_dir / first} comes before {_conflist(options).name}: most runtimes take that one"
        )


def _words(change: Change) -> str:
    if change.action == "restored":
        return f"restored {change.path}"
    if change.action == "left":
        return f"left {change.path}, and {change.backup}: somebody has written it again"
    return f"{change.action} {change.path}" + (f" (before: {change.backup})" if change.backup else "")
