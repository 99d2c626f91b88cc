"""The kubelet's port of a node that joins somebody else's API server."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from podwire.cli import checks
from podwire.cli.errors import CommandError, usage
from podwire.cli.locations import Locations

if TYPE_CHECKING:
    from podwire.kube.client import Client
    from podwire.node.service import Node

PORT = 10250
"""What the kubelet listens on, too."""
_LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletOptions:
    """The command line as it was given; ``port`` None: not given."""

    port: int | None = None
    client_ca: str = ""
    certificate: str = ""
    key: str = ""

    @property
    def given(self) -> str:
        """The first flag that was given, empty if none was."""
        flags = {
            "--kubelet-port": self.port is not None,
            "--client-ca-file": bool(self.client_ca),
            "--tls-cert-file": bool(self.certificate),
            "--tls-private-key-file": bool(self.key),
        }
        return next((flag for flag, there in flags.items() if there), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletPlan:
    """What will be served; the files have been looked at."""

    port: int
    client_ca: Path | None = None
    pair: tuple[Path, Path] | None = None

    @property
    def arguments(self) -> list[str]:
        """The flags that say the same."""
        found = ["--kubelet-port", str(self.port)]
        if self.client_ca is not None:
            found += ["--client-ca-file", str(self.client_ca)]
        if self.pair is not None:
            found += ["--tls-cert-file", str(self.pair[0]), "--tls-private-key-file", str(self.pair[1])]
        return found


def planned(options: KubeletOptions, *, joins: bool) -> KubeletPlan | None:
    """Check the command line; None for a node without such a port."""
    if not joins:
        if options.given:
            raise usage(
                f"{options.given}: only with --kubeconfig",
                hint="The API server inside reaches the pods of its node without a port.",
            )
        return None
    if bool(options.certificate) != bool(options.key):
        raise usage("--tls-cert-file and --tls-private-key-file go together")
    plan = KubeletPlan(
        port=PORT if options.port is None else options.port,
        client_ca=checks.file("--client-ca-file", options.client_ca) if options.client_ca else None,
        pair=(
            checks.file("--tls-cert-file", options.certificate),
            checks.file("--tls-private-key-file", options.key),
        )
        if options.certificate
        else None,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if plan.pair is not None:
        try:
            context.load_cert_chain(*plan.pair, password=_no_password)
        except (OSError, ValueError) as error:
            raise CommandError(
                f"--tls-cert-file {plan.pair[0]}, --tls-private-key-file {plan.pair[1]}: {error}"
            ) from error
    if plan.client_ca is not None:
        _trust(context, plan.client_ca)
    return plan


@asynccontextmanager
async def serving(
    plan: KubeletPlan | None, node: Node, client: Client, places: Locations
) -> AsyncIterator[None]:
    """Serve as planned, and tell the node where."""
    if plan is None or plan.port == 0:
        yield
        return
    from podwire.node.kubelet import server
    from podwire.node.kubelet.callers import Callers
    from podwire.node.nodestreams import NodeStreams
    from podwire.serving.streaming.service import Streaming

    tls = await asyncio.to_thread(_tls, plan, node.node_name, places)
    try:
        listeners = server.listen(plan.port)
    except OSError as error:
        raise CommandError(
            f"--kubelet-port {plan.port}: {error.strerror or error}",
            hint="Give another, or 0 to go without: then kubectl logs and exec do not reach the pods here.",
        ) from error
    streaming = Streaming(NodeStreams(node))
    kubelet = server.Kubelet(node, streaming, Callers(client, node.node_name, node.clock))
    try:
        await kubelet.start(listeners, tls)
        node.kubelet_port = plan.port
        yield
    finally:
        await streaming.close()
        await kubelet.close()


def _tls(plan: KubeletPlan, node_name: str, places: Locations) -> ssl.SSLContext:
    from podwire.node.host import host_addresses
    from podwire.serving.keyfiles import KeyFiles, server_context

    if plan.pair is not None:
        context = server_context(*plan.pair)
    else:
        directory = places.state / "kubelet"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = tuple(dict.fromkeys((node_name, *_LOCAL, *host_addresses())))
        context = KeyFiles(directory, "podwire-kubelet").tls(names)
    if plan.client_ca is not None:
        _trust(context, plan.client_ca)
    return context


def _trust(context: ssl.SSLContext, authority: Path) -> None:
    try:
        context.load_verify_locations(authority)
    except (OSError, ValueError) as error:
        raise CommandError(f"--client-ca-file {authority}: not a PEM certificate: {error}") from error
    context.verify_mode = ssl.CERT_OPTIONAL


def _no_password() -> str:
    raise ValueError("the key is encrypted: a key without a password is needed")
