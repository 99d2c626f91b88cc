"""``podwire up``: checks first, then this process (or one in the background) is the node."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from podwire.cli import checks, detach, lock, nodelog, output
from podwire.cli.errors import CommandError, usage
from podwire.cli.kubelet import KubeletOptions, KubeletPlan, planned
from podwire.cli.locations import Locations
from podwire.cli.report import words
from podwire.node import hoststate

ONCE_SECONDS = 120.0
"""How long ``--once`` waits unless ``--timeout`` says otherwise."""


@dataclass(frozen=True, slots=True)
class Options:
    """The command line as it was given."""

    paths: tuple[str, ...]
    detach: bool
    once: bool
    timeout: float | None
    pod_cidr: str
    node_name: str | None
    bridge: str
    places: Locations
    verbose: bool
    ready_fd: int
    url_headers: tuple[str, ...] = ()
    apiserver: bool = True
    kubeconfig: str = ""
    kubelet: KubeletOptions = field(default_factory=KubeletOptions)


@dataclass(frozen=True, slots=True)
class Plan:
    """What will run: everything in it has been checked."""

    manifests: tuple[Path, ...]
    node_name: str
    bridge: str
    pod_cidrs: tuple[checks.Network, ...]
    places: Locations
    once: bool
    timeout: float
    verbose: bool
    waiter: detach.Waiter | None
    notices: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    url_headers: tuple[tuple[str, str], ...] = ()
    apiserver: bool = True
    """Whether the API server is inside."""
    kubeconfig: Path | None = None
    """How to reach the API server that is somewhere else."""
    kubelet: KubeletPlan | None = None
    """How that one reaches the pods here."""

    @property
    def cidrs(self) -> tuple[str, ...]:
        """The ranges as text."""
        return tuple(str(network) for network in self.pod_cidrs)


def run(options: Options) -> int:
    """Be the node, or start one in the background."""
    if options.detach:
        return _detach(options)
    if options.ready_fd < 0:
        plan = _plan(options)
        for notice in plan.notices:
            output.note(f"notice: {notice}")
        return _be_node(plan)
    try:
        os.set_inheritable(options.ready_fd, False)
    except OSError as error:
        raise usage(f"--ready-fd {options.ready_fd}: {error.strerror}") from error
    waiter = detach.Waiter(options.ready_fd)
    try:
        return _be_node(_plan(options, waiter))
    except Exception as error:
        message, hint, status = words(error)
        waiter.tell(detach.Started(error=message, hint=hint, exit_code=status))
        raise


def _plan(options: Options, waiter: detach.Waiter | None = None) -> Plan:
    """Check what can be checked without changing anything."""
    if options.once and options.detach:
        raise usage("--once and --detach do not go together: --once waits, --detach does not")
    if options.timeout is not None and not options.once:
        raise usage(f"--timeout {options.timeout:g}: how long --once waits; --once is not given")
    if options.kubeconfig and not options.apiserver:
        raise usage("--kubeconfig and --no-apiserver do not go together: one joins an API server")
    kubeconfig = checks.file("--kubeconfig", options.kubeconfig) if options.kubeconfig else None
    reached = planned(options.kubelet, joins=kubeconfig is not None)
    urls = checks.urls(options.paths)
    manifests = checks.manifests(options.paths, needed=not options.apiserver)
    url_headers = checks.url_headers(options.url_headers)
    if url_headers and not urls:
        raise usage("--manifest-url-header: no URL is given that it could go to")
    node_name = checks.node_name(options.node_name)
    bridge = checks.bridge_name(options.bridge)
    pod_cidrs = checks.pod_cidrs(options.pod_cidr)
    checks.root()
    checks.libnftables()
    notices = []
    if checks.ipv6_is_off():
        kept = tuple(network for network in pod_cidrs if network.version == 4)
        if not kept:
            raise CommandError(
                f"--pod-cidr {options.pod_cidr}: IPv6 is switched off on this host",
                hint="Give an IPv4 range, or switch IPv6 on (sysctl net.ipv6.conf.all.disable_ipv6=0).",
            )
        if kept != pod_cidrs:
            notices.append("IPv6 is switched off on this host: pods get IPv4 addresses only")
        pod_cidrs = kept
    plan = Plan(
        manifests=manifests,
        node_name=node_name,
        bridge=bridge,
        pod_cidrs=pod_cidrs,
        places=options.places,
        once=options.once,
        timeout=ONCE_SECONDS if options.timeout is None else options.timeout,
        verbose=options.verbose,
        waiter=waiter,
        urls=urls,
        url_headers=url_headers,
        apiserver=options.apiserver and kubeconfig is None,
        kubeconfig=kubeconfig,
        kubelet=reached,
    )
    running = lock.holder(plan.places.lock)
    if running is not None:
        raise _already(plan.places, running)
    from podwire.cli import hostchecks
    from podwire.kernel.host import Kernel

    with Kernel.open() as kernel:
        hostchecks.host_is_free(kernel, plan.places, bridge, pod_cidrs)
        notices += hostchecks.forwarding_drops(kernel, bridge)
    return replace(plan, notices=tuple(notices))


def _already(places: Locations, pid: int) -> CommandError:
    return CommandError(
        f"a node runs here already: process {pid} (lock {places.lock})",
        hint=f"See it with: podwire get pods{places.flags}. End it with: podwire down{places.flags}",
    )


def _detach(options: Options) -> int:
    plan = _plan(options)
    arguments = ["up", *map(str, plan.manifests), *plan.urls, "--pod-cidr", ",".join(plan.cidrs)]
    arguments += ["--node-name", plan.node_name, "--bridge", plan.bridge]
    if plan.places.root:
        arguments += ["--root", str(plan.places.root)]
    arguments += [f"--manifest-url-header={name}:{value}" for name, value in plan.url_headers]
    if plan.kubeconfig is not None:
        arguments += ["--kubeconfig", str(plan.kubeconfig)]
        arguments += plan.kubelet.arguments if plan.kubelet is not None else []
    elif not plan.apiserver:
        arguments.append("--no-apiserver")
    if plan.verbose:
        arguments.append("--verbose")
    with tempfile.TemporaryFile() as first_words:
        pid = detach.start(arguments, first_words)
    for notice in plan.notices:
        output.note(f"notice: {notice}")
    print(f"podwire: node {plan.node_name} is ready: process {pid}, log {plan.places.log}")
    if plan.apiserver:
        kubeconfig = plan.places.apiserver / "kubeconfig"
        if kubeconfig.exists():
            print(f"Its API server: kubectl --kubeconfig {kubeconfig} get pods -A")
    print(
        f"See its pods with: podwire get pods{plan.places.flags}."
        f" End it with: podwire down{plan.places.flags}."
    )
    return 0


def _be_node(plan: Plan) -> int:
    from podwire.cli import nodeprocess

    with _own_places(plan):
        if plan.waiter is not None:
            nodelog.write_to(plan.places.log)
        logging.basicConfig(
            level=logging.DEBUG if plan.verbose else logging.WARNING,
            format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        )
        return asyncio.run(nodeprocess.serve(plan))


@contextmanager
def _own_places(plan: Plan) -> Iterator[None]:
    """Make the directories, take the lock, record the host and turn forwarding on."""
    places = plan.places
    made = hoststate.missing_directories(places.state, places.run)
    for directory in (places.state, places.run):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        holding = lock.hold(places.lock)
        with holding:
            hoststate.prepare(
                places.ledger,
                hoststate.HostState(
                    bridge=plan.bridge,
                    pod_cidrs=plan.cidrs,
                    node_name=plan.node_name,
                    boot_id=hoststate.boot_id(),
                    directories=made,
                ),
            )
            yield
    except lock.NodeRunning as running:
        raise _already(places, running.pid) from running
