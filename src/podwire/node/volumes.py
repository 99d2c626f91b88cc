"""Volumes that this node can give: ``emptyDir`` and ``hostPath``, as mounts for the runtime."""

from __future__ import annotations

import glob
import os
import shutil
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from podwire.kube.objects import Container, HostPathVolumeSource, Pod, VolumeMount
from podwire.node.environment import expand
from podwire.node.errors import ContainerConfigError, MountFailed
from podwire.runtime.api import Mount

EMPTY_DIR = "kubernetes.io~empty-dir"


class Volumes:
    """What belongs to pods below ``root``: ``pods/<uid>/volumes`` and their directories in ``logs``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def directory(self, uid: str) -> Path:
        """All that is kept for one pod."""
        return self.root / "pods" / uid

    def set_up(self, pod: Pod) -> dict[str, Path]:
        """Make or check every volume of the pod; its path on the host by name, or :class:`MountFailed`."""
        context = pod.spec.security_context
        group = context.fs_group if context is not None else None
        paths = {}
        for volume in pod.spec.volumes:
            try:
                if volume.host_path is not None:
                    paths[volume.name] = _host_path(volume.name, volume.host_path)
                elif volume.empty_dir is not None:
                    paths[volume.name] = self._empty_dir(pod.metadata.uid, volume.name, group)
            except OSError as error:
                raise MountFailed(volume.name, f"{error.filename}: {error.strerror}") from error
        return paths

    def remove(self, uid: str) -> None:
        """Delete what was kept for the pod, its logs too; nothing is fine."""
        shutil.rmtree(self.directory(uid), ignore_errors=True)
        for logs in (self.root / "logs").glob(f"*_{glob.escape(uid)}"):
            shutil.rmtree(logs, ignore_errors=True)

    def left(self) -> set[str]:
        """UIDs of the pods for which something is kept."""
        volumes = {entry.name for entry in (self.root / "pods").glob("*")}
        return volumes | {entry.name.rpartition("_")[2] for entry in (self.root / "logs").glob("*_*_*")}

    def _empty_dir(self, uid: str, name: str, group: int | None) -> Path:
        path = self.directory(uid) / "volumes" / EMPTY_DIR / name
        if not path.is_dir():
            path.mkdir(parents=True)
            path.chmod(0o777)
            if group is not None:
                os.chown(path, -1, group)
                path.chmod(0o2777)
        return path


def _host_path(name: str, source: HostPathVolumeSource) -> Path:
    path = Path(source.path)
    kind = source.type
    if kind in ("", "DirectoryOrCreate") and not path.exists():
        # Without a type the kubelet checks nothing and the runtime makes a missing directory.
        path.mkdir(parents=True, mode=0o755)
    elif kind == "FileOrCreate" and not path.exists():
        path.touch(mode=0o644)
    if kind == "":
        return path
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise MountFailed(name, f"hostPath type check failed: {path} does not exist") from None
    wanted = _TYPES.get(kind)
    if wanted is None:
        raise MountFailed(name, f"{path}: hostPath type {kind!r} is none of {', '.join(_TYPES)}")
    check, what = wanted
    if not check(mode):
        raise MountFailed(name, f"hostPath type check failed: {path} is not a {what}")
    return path


_TYPES: Mapping[str, tuple[Callable[[int], bool], str]] = {
    "Directory": (stat.S_ISDIR, "directory"),
    "DirectoryOrCreate": (stat.S_ISDIR, "directory"),
    "File": (stat.S_ISREG, "file"),
    "FileOrCreate": (stat.S_ISREG, "file"),
    "Socket": (stat.S_ISSOCK, "socket"),
    "CharDevice": (stat.S_ISCHR, "character device"),
    "BlockDevice": (stat.S_ISBLK, "block device"),
}


def mounts(
    container: Container, paths: Mapping[str, Path], variables: Mapping[str, str]
) -> tuple[Mount, ...]:
    """The container's volume mounts, ``subPath`` resolved and kept inside its volume."""
    return tuple(
        Mount(mount.mount_path, str(_source(container, mount, paths, variables)), mount.read_only)
        for mount in container.volume_mounts
    )


def _source(
    container: Container, mount: VolumeMount, paths: Mapping[str, Path], variables: Mapping[str, str]
) -> Path:
    if mount.name not in paths:
        raise ContainerConfigError(container.name, f"volumeMounts: no volume is named {mount.name!r}")
    base = paths[mount.name]
    below = expand(mount.sub_path_expr, variables) if mount.sub_path_expr else mount.sub_path
    if not below:
        return base
    path = (base / below).resolve()
    if below.startswith("/") or not path.is_relative_to(base.resolve()):
        raise ContainerConfigError(
            container.name, f"volumeMounts: subPath {below!r} leads out of volume {mount.name!r}"
        )
    if not path.exists():
        try:
            path.mkdir(parents=True, mode=0o750)
        except OSError as error:
            raise ContainerConfigError(
                container.name, f"volumeMounts: subPath {below!r}: {error.filename}: {error.strerror}"
            ) from error
    return path
