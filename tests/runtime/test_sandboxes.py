"""Sandboxes: made all or nothing, seen, taken down without a trace."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from podwire.cni.errors import CNIError, TryLater
from podwire.runtime import shim, wire
from podwire.runtime.api import (
    ContainerState,
    DNSConfig,
    EventType,
    HostAlias,
    PidMode,
    PortMapping,
    PortProtocol,
    SandboxMetadata,
    SandboxState,
)
from podwire.runtime.embedded import EmbeddedRuntime
from podwire.runtime.errors import Code, RuntimeFault
from podwire.runtime.network import addresses
from podwire.runtime.spawning import Spawner
from podwire.runtime.supervisor import Spec
from tests.runtime import helpers
from tests.runtime.helpers import Places, container, ended, ran, shell, started, until

pytestmark = pytest.mark.kernel


async def test_a_pod_sees_its_own_names_and_network(runtime: EmbeddedRuntime, places: Places) -> None:
    config = places.own_network(
        domain="svc.local",
        dns=DNSConfig(("10.0.0.10",), ("local",), ("ndots:5",)),
        host_aliases=(HostAlias("10.1.1.1", ("friend",)),),
    )
    sandbox = await runtime.run_pod_sandbox(config)
    script = "cat /etc/hosts; echo --; cat /etc/resolv.conf; echo --; cat /etc/hostname; hostname"
    script += "; ls /sys/class/net"
    await ran(runtime, sandbox, shell(script))
    hosts, resolv, names = places.log().decode().split("--\n")
    assert "10.9.0.5\tweb.svc.local\tweb\nfd00:9::5\tweb.svc.local\tweb\n" in hosts
    assert hosts.endswith("10.1.1.1\tfriend\n")
    assert resolv == "search local\nnameserver 10.0.0.10\noptions ndots:5\n"
    assert names == "web\nweb\nlo\n"
    status = await runtime.pod_sandbox_status(sandbox)
    assert status.ips == ("10.9.0.5", "fd00:9::5")
    assert status.state is SandboxState.READY
    assert status.netns == str(places.run_dir / "netns" / sandbox)
    inside = subprocess.run(
        ["nsenter", f"--net={status.netns}", "ip", "-br", "link"], capture_output=True, text=True, check=True
    )
    assert "LOOPBACK,UP" in inside.stdout
    assert sandbox.isalnum() and len(sandbox) == 64


async def test_a_pod_in_the_hosts_network_sees_the_machine(runtime: EmbeddedRuntime, places: Places) -> None:
    sandbox = await runtime.run_pod_sandbox(places.sandbox())
    script = "readlink /proc/self/ns/net /proc/self/ns/uts; cat /etc/hosts"
    await ran(runtime, sandbox, shell(script))
    own = [str(Path("/proc/thread-self/ns", kind).readlink()) for kind in ("net", "uts")]
    assert places.log().decode() == "\n".join(own) + "\n" + Path("/etc/hosts").read_text()
    status = await runtime.pod_sandbox_status(sandbox)
    assert (status.ips, status.netns) == ((), "")
    assert places.cni.calls == []


async def test_the_network_is_told_who_the_pod_is(runtime: EmbeddedRuntime, places: Places) -> None:
    config = places.own_network(
        port_mappings=(
            PortMapping(PortProtocol.TCP, 80, 8080),
            PortMapping(PortProtocol.UDP, 53, 5353, "127.0.0.1"),
            PortMapping(PortProtocol.SCTP, 9),
        ),
        annotations={"kubernetes.io/ingress-bandwidth": "10M"},
    )
    sandbox = await runtime.run_pod_sandbox(config)
    await runtime.stop_pod_sandbox(sandbox)
    assert places.cni.calls == [("ADD", "test"), ("DEL", "test")]
    assert places.cni.netns_at_add == [True]
    added, deleted = places.cni.asked
    assert added == deleted
    assert (added.container_id, added.ifname) == (sandbox, "eth0")
    assert added.netns == str(places.run_dir / "netns" / sandbox)
    assert added.args == {
        "IgnoreUnknown": "1",
        "K8S_POD_NAMESPACE": "default",
        "K8S_POD_NAME": "web",
        "K8S_POD_INFRA_CONTAINER_ID": sandbox,
        "K8S_POD_UID": "uid-of-web",
    }
    assert added.capability_args == {
        "portMappings": [
            {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
            {"hostPort": 5353, "containerPort": 53, "protocol": "udp", "hostIP": "127.0.0.1"},
        ],
        "bandwidth": {"ingressRate": 10_000_000, "ingressBurst": 4294967295},
    }


async def test_addresses_of_host_side_interfaces_are_not_the_pods(places: Places) -> None:
    from podwire.cni.types import Interface, IPConfig, Result

    result = Result(
        interfaces=(Interface(name="br0"), Interface(name="eth0", sandbox="/x")),
        ips=(
            IPConfig(address="10.0.0.1/24", interface=0),
            IPConfig(address="10.0.0.2/24", interface=1),
            IPConfig(address="fd00::2/64"),
        ),
    )
    assert addresses(result) == ("10.0.0.2", "fd00::2")


async def test_e10_e11_a_failed_add_leaves_nothing_and_tells_the_cause(
    runtime: EmbeddedRuntime, places: Places
) -> None:
    mounts = helpers.mounts()
    places.cni.add_error = CNIError("no addresses left", "in 10.9.0.0/16", code=100)
    for _ in range(3):
        with pytest.raises(RuntimeFault) as caught:
            await runtime.run_pod_sandbox(places.own_network())
        assert caught.value.__cause__ is places.cni.add_error
        assert "no addresses left" in str(caught.value) and "default/web" in str(caught.value)
    assert places.cni.calls == [("ADD", "test"), ("DEL", "test")] * 3
    assert await runtime.list_pod_sandbox() == []
    assert helpers.mounts() == mounts
    assert not list(places.root.glob("sandboxes/*")) and not list(places.run_dir.glob("*/*"))
    places.cni.add_error = None
    await runtime.run_pod_sandbox(places.own_network())


async def test_what_cannot_be_undone_is_kept_until_it_can(runtime: EmbeddedRuntime, places: Places) -> None:
    places.cni.add_error = CNIError("broken", code=100)
    places.cni.delete_error = TryLater("not now")
    with pytest.raises(RuntimeFault, match="broken"):
        await runtime.run_pod_sandbox(places.own_network())
    (left,) = await runtime.list_pod_sandbox()
    assert left.state is SandboxState.NOTREADY
    places.cni.add_error = None
    again = await runtime.run_pod_sandbox(places.own_network())
    with pytest.raises(RuntimeFault, match="not now"):
        await runtime.remove_pod_sandbox(left.id)
    places.cni.delete_error = None
    await runtime.remove_pod_sandbox(left.id)
    assert [status.id for status in await runtime.list_pod_sandbox()] == [again]
    assert places.cni.attached == {again}


async def test_a_del_that_fails_is_done_again_by_the_next_stop(
    runtime: EmbeddedRuntime, places: Places
) -> None:
    sandbox = await runtime.run_pod_sandbox(places.own_network())
    places.cni.delete_error = TryLater("busy")
    for stop in (runtime.stop_pod_sandbox, runtime.remove_pod_sandbox):
        with pytest.raises(RuntimeFault, match="busy"):
            await stop(sandbox)
    assert (await runtime.pod_sandbox_status(sandbox)).state is SandboxState.NOTREADY
    assert helpers.processes_of([sandbox]) == {}
    places.cni.delete_error = None
    await runtime.stop_pod_sandbox(sandbox)
    calls = len(places.cni.calls)
    await runtime.stop_pod_sandbox(sandbox)
    assert len(places.cni.calls) == calls == 4
    assert not (places.run_dir / "netns" / sandbox).exists()


async def test_a_creation_that_is_given_up_is_undone(runtime: EmbeddedRuntime, places: Places) -> None:
    places.cni.during_add = asyncio.Event()
    creation = asyncio.ensure_future(runtime.run_pod_sandbox(places.own_network()))
    await places.cni.during_add.wait()
    assert await runtime.list_pod_sandbox() == []
    creation.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creation
    assert places.cni.calls == [("ADD", "test"), ("DEL", "test")]
    assert not list(places.root.glob("sandboxes/*")) and not list(places.run_dir.glob("*/*"))
    places.cni.during_add = None


async def test_an_add_that_takes_too_long_is_undone_with_time_of_its_own(
    runtime: EmbeddedRuntime, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("podwire.runtime.sandbox.CREATE_SECONDS", 0.3)
    places.cni.during_add = asyncio.Event()
    with pytest.raises(RuntimeFault) as caught:
        await runtime.run_pod_sandbox(places.own_network())
    assert caught.value.code is Code.DEADLINE_EXCEEDED
    assert "waited for its network (CNI ADD)" in caught.value.message
    assert places.cni.calls == [("ADD", "test"), ("DEL", "test")]
    assert await runtime.list_pod_sandbox() == []


async def test_a_sysctl_that_the_kernel_refuses_fails_the_sandbox(
    runtime: EmbeddedRuntime, places: Places
) -> None:
    config = places.own_network(sysctls={"net.ipv4.no_such_thing": "1"})
    with pytest.raises(RuntimeFault, match="net/ipv4/no_such_thing"):
        await runtime.run_pod_sandbox(config)
    with pytest.raises(RuntimeFault, match="sysctl net/ipv4/ip_forward = many"):
        await runtime.run_pod_sandbox(places.own_network(sysctls={"net.ipv4.ip_forward": "many"}))
    assert places.cni.calls == [("ADD", "test"), ("DEL", "test")] * 2
    assert not list(places.root.glob("sandboxes/*"))


async def test_sysctls_are_the_pods_own(runtime: EmbeddedRuntime, places: Places) -> None:
    keys = ("net/ipv4/ip_local_port_range", "kernel/shmmax")
    before = [Path("/proc/sys", key).read_text() for key in keys]
    sysctls = {"net.ipv4.ip_local_port_range": "4000 5000", "kernel.shmmax": "123456789"}
    sandbox = await runtime.run_pod_sandbox(places.own_network(sysctls=sysctls))
    await ran(runtime, sandbox, container("/bin/cat", *(f"/proc/sys/{key}" for key in keys)))
    assert places.log().split() == [b"4000", b"5000", b"123456789"]
    assert [Path("/proc/sys", key).read_text() for key in keys] == before


async def test_one_sandbox_for_an_attempt(runtime: EmbeddedRuntime, places: Places) -> None:
    first = await runtime.run_pod_sandbox(places.sandbox())
    with pytest.raises(RuntimeFault) as caught:
        await runtime.run_pod_sandbox(places.sandbox())
    assert caught.value.code is Code.ALREADY_EXISTS and first in str(caught.value)
    metadata = SandboxMetadata("web", "uid-of-web", "default", attempt=1)
    second = await runtime.run_pod_sandbox(places.sandbox(metadata=metadata))
    assert [status.id for status in await runtime.list_pod_sandbox()] == [first, second]


async def test_stop_ends_everything_at_once_and_keeps_the_exit_codes(
    runtime: EmbeddedRuntime, places: Places
) -> None:
    sandbox = await runtime.run_pod_sandbox(places.own_network(pid=PidMode.POD))
    await ran(runtime, sandbox, shell("exit 6", "done"))
    await started(runtime, sandbox, shell("trap '' TERM; sleep 60 & setsid sleep 60 & wait", "stubborn"))
    created = await runtime.create_container(sandbox, container("/bin/true", name="created"))
    await until("its children run", lambda: len(helpers.processes_of([sandbox])) == 5)
    processes = helpers.processes_of([sandbox])
    await runtime.stop_pod_sandbox(sandbox)
    assert helpers.processes_of([sandbox]) == {} and not any(map(helpers.alive, processes))
    states = {status.metadata.name: status for status in await runtime.list_containers()}
    assert (states["done"].exit_code, states["stubborn"].exit_code) == (6, 137)
    assert states["created"].state is ContainerState.CREATED
    for request in (
        runtime.start_container(created),
        runtime.create_container(sandbox, container("/bin/true")),
    ):
        with pytest.raises(RuntimeFault) as caught:
            await request
        assert caught.value.code is Code.FAILED_PRECONDITION


async def test_a_dead_supervisor_leaves_nothing_running(runtime: EmbeddedRuntime, places: Places) -> None:
    events = runtime.events()
    for mode in PidMode:
        sandbox = await runtime.run_pod_sandbox(places.own_network(f"pod{int(mode)}", pid=mode))
        # The program changes its user, which makes the kernel forget its parent-death signal.
        script = "import os, time; os.setresuid(65534, 65534, 65534); os.fork();"
        script += "print('up', flush=True); time.sleep(60)"
        config = container("/usr/bin/python3", "-c", script, name=f"c{int(mode)}")
        container_id = await started(runtime, sandbox, config)
        await until("it is up", lambda name=config.metadata.name: places.log(name).count(b"up") == 2)  # type: ignore[misc]
        processes = helpers.processes_of([sandbox])
        os.kill(helpers.supervisor_of(sandbox), signal.SIGKILL)
        status = await ended(runtime, container_id)
        assert (status.exit_code, status.reason) == (137, "Error")
        assert "supervisor" in status.message
        assert (await runtime.pod_sandbox_status(sandbox)).state is SandboxState.NOTREADY
        await until("all are gone", lambda all=processes: not any(map(helpers.alive, all)))  # type: ignore[misc]
        await runtime.stop_container(container_id, 5)
        async with asyncio.timeout(5):
            while (
                event := await anext(events)
            ).container_id != sandbox or event.type is not EventType.STOPPED:
                pass
        await runtime.remove_pod_sandbox(sandbox)
    await events.aclose()
    assert places.cni.attached == set()


async def test_a_killed_spawner_is_replaced(runtime: EmbeddedRuntime, places: Places) -> None:
    first = await runtime.run_pod_sandbox(places.sandbox("first"))
    stat = Path(f"/proc/{helpers.supervisor_of(first)}/stat").read_text()
    spawner = int(stat.rpartition(")")[2].split()[1])
    os.kill(spawner, signal.SIGKILL)
    second = await runtime.run_pod_sandbox(places.sandbox("second"))
    for sandbox in (first, second):
        assert (await ran(runtime, sandbox, shell("exit 0", sandbox[:5]))).exit_code == 0


async def test_a_supervisor_that_nobody_keeps_ends(runtime: EmbeddedRuntime, places: Places) -> None:
    """The node is killed between asking the spawner and writing down that the sandbox is ready."""
    for keep in (True, False):
        state, run = places.base / f"state-{keep}", places.base / f"run-{keep}"
        state.mkdir()
        run.mkdir()
        spec = Spec("f" * 64, str(state), str(run), "", "host", str(places.logs), 1, {}, 1000, 2)
        spawner = Spawner(places.base / "spawner.log")
        ours, theirs = socket.socketpair()
        spawner.spawn(spec, theirs)
        theirs.close()
        loop = asyncio.get_running_loop()
        ours.setblocking(False)
        frames = wire.Decoder()
        (hello,) = frames.feed(await loop.sock_recv(ours, 4096))
        if keep:
            await loop.sock_sendall(ours, wire.encode({"id": 1, "op": "keep"}))
            assert list(frames.feed(await loop.sock_recv(ours, 4096))) == [{"id": 1, "ok": {}}]
        ours.close()
        if keep:
            with shim.connect(run) as again:
                await loop.sock_recv(again, 4096)
                await loop.sock_sendall(again, wire.encode({"id": 2, "op": "shutdown"}))
                assert list(frames.feed(await loop.sock_recv(again, 4096))) == [{"id": 2, "ok": {}}]
        await until("it has ended", lambda pid=hello["pid"]: not helpers.alive(pid))  # type: ignore[misc]
        assert (state / "supervisor.log").read_text() == ""
        spawner.close()


async def test_the_socket_is_private_and_takes_no_nonsense(runtime: EmbeddedRuntime, places: Places) -> None:
    sandbox = await runtime.run_pod_sandbox(places.sandbox())
    (path,) = places.run_dir.glob("sandboxes/*/shim.sock")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == places.root.stat().st_mode & 0o777 == 0o700
    nonsense = [b"GET / HTTP/1.0\r\n\r\n", b"\0\0\0\x02{}", b"\0\0\0\x05[1,2]", b"\0\0", b"\xff" * 100_000]
    for operation in ("start", "stop", "forget", "exec", "nope"):
        nonsense.append(wire.encode({"id": 1, "op": operation}))
        nonsense.append(
            wire.encode({"id": 1, "op": operation, "container": "../x", "command": 5, "grace": "x"})
        )
    for data in nonsense:
        with shim.connect(path.parent) as sock, contextlib.suppress(ConnectionResetError, BrokenPipeError):
            await asyncio.get_running_loop().sock_sendall(sock, data)
            sock.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(5):
                while await asyncio.get_running_loop().sock_recv(sock, 65536):
                    pass
    assert (await ran(runtime, sandbox, shell("exit 0"))).exit_code == 0
    log = places.root / "sandboxes" / sandbox / "supervisor.log"
    assert log.read_text() == ""


async def test_events_tell_the_life_of_a_pod_in_order(runtime: EmbeddedRuntime, places: Places) -> None:
    events = runtime.events()
    sandbox = await runtime.run_pod_sandbox(places.sandbox())
    container_id = await started(runtime, sandbox, shell("exit 0"))
    await ended(runtime, container_id)
    await runtime.remove_container(container_id)
    await runtime.remove_pod_sandbox(sandbox)
    await events.aclose()
    seen = [(event.type, event.container_id) async for event in events]
    assert seen == [
        (EventType.STARTED, sandbox),
        (EventType.CREATED, container_id),
        (EventType.STARTED, container_id),
        (EventType.STOPPED, container_id),
        (EventType.DELETED, container_id),
        (EventType.STOPPED, sandbox),
        (EventType.DELETED, sandbox),
    ]


async def test_fifty_at_once(runtime: EmbeddedRuntime, places: Places) -> None:
    names = [f"pod-{number}" for number in range(50)]

    async def one(name: str) -> tuple[str, int]:
        sandbox = await runtime.run_pod_sandbox(places.own_network(name))
        status = await ran(runtime, sandbox, shell("hostname", name))
        return sandbox, status.exit_code

    made = await asyncio.gather(*map(one, names))
    assert {code for _, code in made} == {0}
    assert [places.log(name) for name in names] == [f"{name}\n".encode() for name in names]
    assert len({sandbox for sandbox, _ in made}) == 50
    await asyncio.gather(*(runtime.remove_pod_sandbox(sandbox) for sandbox, _ in made))
    assert helpers.processes_of(sandbox for sandbox, _ in made) == {}
    assert places.cni.attached == set()


async def test_a_resolv_conf_that_is_a_link_is_covered_where_it_points(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine (a mount namespace of the test's own) with systemd's link, shared mounts, no hostname."""
    program = """
import asyncio, sys
from pathlib import Path
from tests.runtime import helpers
from podwire.runtime.api import DNSConfig
async def main():
    places = helpers.Places(Path(sys.argv[1]), helpers.FakeCni())
    runtime = places.runtime()
    config = places.own_network(dns=DNSConfig(("10.0.0.10",)))
    sandbox = await runtime.run_pod_sandbox(config)
    config = helpers.shell("cat /etc/resolv.conf; ls /etc; sleep 60")
    container = await helpers.started(runtime, sandbox, config)
    await helpers.until("log", lambda: b"resolv.conf\\n" in places.log())
    print((await runtime.container_status(container)).message)
    print(places.log().decode())
    await runtime.remove_pod_sandbox(sandbox)
    await runtime.close()
asyncio.run(main())
"""
    script = (
        "set -e; mkdir -p /run/systemd/resolve; echo nameserver 127.0.0.53 > /run/systemd/resolve/stub; "
        "mount -t tmpfs none /etc; ln -s ../run/systemd/resolve/stub /etc/resolv.conf; "
        "echo root:x:0:0::/:/ > /etc/passwd; "
        "echo 127.0.0.1 localhost > /etc/hosts; cat /proc/self/mountinfo > /run/before; "
        '"$@"; diff /run/before /proc/self/mountinfo; cat /etc/resolv.conf; test ! -e /etc/hostname'
    )
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{root}:{root / 'src'}")
    command = [
        "unshare",
        "-m",
        "--propagation",
        "shared",
        "sh",
        "-c",
        script,
        "sh",
        _python(),
        "-c",
        program,
        str(places.base),
    ]
    done = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await asyncio.wait_for(done.communicate(), 30)
    lines = output.decode().splitlines()
    assert done.returncode == 0, output
    assert lines[0] == "/etc/hostname does not exist on this machine, so programs do not see the pod's"
    assert lines[1] == "nameserver 10.0.0.10"
    assert lines[-1] == "nameserver 127.0.0.53"


def _python() -> str:
    import sys

    return sys.executable
