"""Taking a node off its machine, from its records alone: nothing of this needs the node to run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from podwire.cli import output
from podwire.cli.errors import CommandError
from podwire.kernel import links, netns
from podwire.kernel.host import Kernel
from podwire.plugins import bridge_device, ruleset

_ESCAPES = (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\"))


def remove_bridge(kernel: Kernel, name: str) -> str:
    """Remove the pods' bridge; with a port left on it that is not ours to cut off, say so and keep it.

    A link that only has the bridge's name is none of ours: it is noted, and nothing is left to be done.
    """
    with_ports = links.list_links(kernel.route())
    bridge = next((link for link in with_ports if link.name == name), None)
    if bridge is None:
        return ""
    if bridge.kind != "bridge" or (bridge.alias and not bridge_device.is_ours(bridge)):
        output.note(f"link {name} stays: it is not the bridge that this node made")
        return ""
    ports = sorted(link.name for link in with_ports if link.master == bridge.index)
    if ports:
        return f"bridge {name} stays: still attached to it: {', '.join(ports)}"
    kernel.links.remove(name)
    return ""


def mounts_below(directory: Path) -> list[Path]:
    """Mount points inside ``directory``, innermost first."""
    prefix = f"{directory}/"
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = line.split(" ")[4]
        for escape, character in _ESCAPES:
            point = point.replace(escape, character)
        if point.startswith(prefix):
            found.append(Path(point))
    return sorted(found, key=lambda path: len(path.parts), reverse=True)


def remove_tree(directory: Path, keep: Path | None = None) -> None:
    """Remove a directory of ours with all in it, but for the file ``keep`` directly in it.

    What is mounted there is let go of first, never emptied.
    """
    for point in mounts_below(directory):
        netns.remove(str(point))
    left = mounts_below(directory)
    if left:
        raise CommandError(
            f"{left[0]} is still mounted", hint=f"Unmount it (umount {left[0]}) and run podwire down again."
        )
    if keep is not None and keep.exists():
        for entry in directory.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry != keep:
                entry.unlink()
    elif directory.is_dir():
        shutil.rmtree(directory)


def remove_empty(directories: tuple[str, ...]) -> None:
    """Remove those directories, innermost first, that are empty."""
    for directory in sorted(directories, key=lambda path: path.count("/"), reverse=True):
        if os.path.isdir(directory) and not os.listdir(directory):  # noqa: PTH112, PTH208
            Path(directory).rmdir()


def _owners(kernel: Kernel) -> Iterator[str]:
    """The attachments that elements of our table belong to, as their comments say."""
    if not kernel.nft.has_table(ruleset.TABLE):
        return
    stack: list[Any] = kernel.nft.query(f"list table inet {ruleset.TABLE}")
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            comment = item.get("comment")
            if isinstance(comment, str) and comment.count("/") == 2:
                yield comment
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)


def remove_rules(kernel: Kernel) -> str:
    """Remove the table of host ports and masquerading, unless attachments of others are still in it."""
    used = sorted(set(_owners(kernel)))
    if used:
        return f"table inet {ruleset.TABLE} stays: still used by {', '.join(used)}"
    ruleset.remove_table(kernel.nft)
    return ""
