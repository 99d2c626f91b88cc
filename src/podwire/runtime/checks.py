"""What the embedded runtime refuses before it makes anything, as RuntimeFault INVALID_ARGUMENT."""

from __future__ import annotations

import ipaddress
import re

from podwire.runtime.api import ContainerConfig, DNSConfig, NetworkMode, SandboxConfig
from podwire.runtime.errors import Code, RuntimeFault
from podwire.runtime.network import capability_args

_SYSCTL = re.compile(r"[a-zA-Z0-9_-]+([./][a-zA-Z0-9_.@:-]+)*")
_IPC_SYSCTLS = ("kernel/shm", "kernel/msg", "kernel/sem", "fs/mqueue/")
_VARIABLE = re.compile(r"[^=\0]+")
_HOSTNAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
_LONGEST_HOSTNAME = 64


def sysctl_path(key: str) -> str:
    """A sysctl's path below /proc/sys. Without a slash in the key, dots separate, as sysctl(8) has it."""
    return key if "/" in key else key.replace(".", "/")


def check_sandbox(config: SandboxConfig) -> None:
    """A sandbox that can be made: its names, sysctls that belong to it alone, addresses, bandwidth."""
    metadata = config.metadata
    subject = f"{metadata.namespace}/{metadata.name}"

    def refuse(field: str, message: str) -> RuntimeFault:
        return RuntimeFault(Code.INVALID_ARGUMENT, subject, f"{field}: {message}")

    if config.network is NetworkMode.POD and (
        len(config.hostname) > _LONGEST_HOSTNAME or not _HOSTNAME.fullmatch(config.hostname)
    ):
        raise refuse(
            "hostname", f'"{config.hostname}" is no host name of up to {_LONGEST_HOSTNAME} characters'
        )
    for key, value in config.sysctls.items():
        path = sysctl_path(key)
        if not _SYSCTL.fullmatch(key) or ".." in path.split("/"):
            raise refuse("sysctl", f'"{key}" is no name of a sysctl')
        if path.startswith("net/"):
            if config.network is NetworkMode.NODE:
                raise refuse(f"sysctl {key}", "a pod in the host's network would change the host's")
        elif not path.startswith(_IPC_SYSCTLS):
            raise refuse(
                f"sysctl {key}",
                "it would change the whole machine: only net.*, kernel.shm*, kernel.msg*, kernel.sem "
                "and fs.mqueue.* belong to a pod",
            )
        if "\n" in value or "\0" in value:
            raise refuse(f"sysctl {key}", f"{value!r} is not one line")
    for alias in config.host_aliases:
        _check_address(subject, "hostAliases", alias.ip)
    if config.dns is not None:
        _check_dns(subject, config.dns)
    capability_args(config)


def _check_dns(subject: str, dns: DNSConfig) -> None:
    for server in dns.servers:
        _check_address(subject, "dns servers", server.partition("%")[0])
    for text in (*dns.searches, *dns.options):
        if not text or text.split() != [text]:
            raise RuntimeFault(Code.INVALID_ARGUMENT, subject, f"dns: {text!r} is not one word")


def _check_address(subject: str, field: str, text: str) -> None:
    try:
        ipaddress.ip_address(text)
    except ValueError as error:
        raise RuntimeFault(Code.INVALID_ARGUMENT, subject, f'{field}: "{text}" is no IP address') from error


def check_container(config: ContainerConfig) -> None:
    """A container that can be run from this machine: a command, named variables, absolute mount paths."""
    subject = f'container "{config.metadata.name}"'
    if not config.command:
        raise RuntimeFault(
            Code.INVALID_ARGUMENT,
            subject,
            "no command: the embedded runtime runs programs of this machine and pulls no images; write "
            'command: ["/usr/bin/..."] (images need containerd)',
        )
    for name, _ in config.envs:
        if not _VARIABLE.fullmatch(name):
            raise RuntimeFault(
                Code.INVALID_ARGUMENT, subject, f"{name!r} is no name of an environment variable"
            )
    paths = [path for mount in config.mounts for path in (mount.host_path, mount.container_path)]
    for path in (*paths, *((config.working_dir,) if config.working_dir else ())):
        if not path.startswith("/"):
            raise RuntimeFault(Code.INVALID_ARGUMENT, subject, f'"{path}" is no absolute path')
