"""A real containerd with its CRI plugin, and a client of its socket."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from cri_api.v1 import api_pb2 as api
from cri_api.v1 import api_pb2_grpc

from tests.e2e import image

CALL_SECONDS = 60
_PROTOCOLS = {"tcp": api.TCP, "udp": api.UDP}
_CONFIG = """version = 2
root = "{home}/root"
state = "{home}/state"
[grpc]
  address = "{home}/c.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{home}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  disable_cgroup = true
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{bin_dir}"
    conf_dir = "{conf_dir}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
"""


class Client:
    """The calls of a kubelet, as far as pods with a network need them."""

    def __init__(self, socket: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix://{socket}")
        self._runtime: Any = api_pb2_grpc.RuntimeServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._number = itertools.count(1)
        self._configs: dict[str, Any] = {}

    def close(self) -> None:
        self._channel.close()

    def wait_until_up(self) -> None:
        grpc.channel_ready_future(self._channel).result(timeout=CALL_SECONDS)

    def network_ready(self) -> tuple[bool, str]:
        """What the runtime says of its network, and why."""
        status = self._call("Status", api.StatusRequest()).status
        (found,) = [each for each in status.conditions if each.type == "NetworkReady"]
        return found.status, found.message

    def run_pod(
        self, *, ports: dict[int, tuple[int, str]] | None = None, annotations: dict[str, str] | None = None
    ) -> str:
        """Run a sandbox and return its ID; ``ports``: host port to (container port, protocol)."""
        name = f"pod{next(self._number)}"
        config = api.PodSandboxConfig(
            metadata=api.PodSandboxMetadata(name=name, uid=f"uid-{name}", namespace="default"),
            log_directory="/run/pods",
            port_mappings=[
                api.PortMapping(protocol=_PROTOCOLS[protocol], container_port=inner, host_port=outer)
                for outer, (inner, protocol) in (ports or {}).items()
            ],
            annotations=annotations or {},
            linux=api.LinuxPodSandboxConfig(),
        )
        sandbox: str = self._call("RunPodSandbox", api.RunPodSandboxRequest(config=config)).pod_sandbox_id
        self._configs[sandbox] = config
        return sandbox

    def run(self, sandbox: str, *command: str) -> str:
        """Start a container in a sandbox and return its ID."""
        made = self._call(
            "CreateContainer",
            api.CreateContainerRequest(
                pod_sandbox_id=sandbox,
                sandbox_config=self._configs[sandbox],
                config=api.ContainerConfig(
                    metadata=api.ContainerMetadata(name="main"),
                    image=api.ImageSpec(image=image.NAME),
                    command=command,
                    linux=api.LinuxContainerConfig(),
                ),
            ),
        )
        self._call("StartContainer", api.StartContainerRequest(container_id=made.container_id))
        return str(made.container_id)

    def execute(self, container: str, *command: str) -> tuple[int, str]:
        """Run a command in a container; return its exit status and output."""
        done = self._call(
            "ExecSync", api.ExecSyncRequest(container_id=container, cmd=command, timeout=CALL_SECONDS)
        )
        return done.exit_code, (done.stdout + done.stderr).decode()

    def addresses(self, sandbox: str) -> list[str]:
        """The pod's addresses as the runtime reports them."""
        request = api.PodSandboxStatusRequest(pod_sandbox_id=sandbox)
        network = self._call("PodSandboxStatus", request).status.network
        return [network.ip, *(each.ip for each in network.additional_ips)]

    def remove_pod(self, sandbox: str) -> None:
        self._call("StopPodSandbox", api.StopPodSandboxRequest(pod_sandbox_id=sandbox))
        self._call("RemovePodSandbox", api.RemovePodSandboxRequest(pod_sandbox_id=sandbox))

    def _call(self, name: str, request: Any) -> Any:
        return getattr(self._runtime, name)(request, timeout=CALL_SECONDS)


@contextmanager
def containerd(home: Path, *, bin_dir: Path, conf_dir: Path) -> Iterator[Client]:
    """Run containerd for the length of a block, with the image in it."""
    home.mkdir(parents=True)
    config = home / "containerd.toml"
    config.write_text(_CONFIG.format(home=home, image=image.NAME, bin_dir=bin_dir, conf_dir=conf_dir))
    with (home / "log").open("wb") as log:
        daemon = subprocess.Popen(["containerd", "-c", str(config)], stdout=log, stderr=log)
    client = Client(home / "c.sock")
    try:
        client.wait_until_up()
        archive = image.archive(home / "image.tar")
        subprocess.run(
            ["ctr", "-a", str(home / "c.sock"), "-n", "k8s.io", "images", "import", str(archive)],
            check=True,
            capture_output=True,
        )
        yield client
    finally:
        client.close()
        daemon.terminate()
        daemon.wait(CALL_SECONDS)
