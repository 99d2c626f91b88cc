"""postStart and preStop hooks (core/v1 LifecycleHandler)."""

from __future__ import annotations

from podwire.kube.objects import Container, LifecycleHandler
from podwire.node.clock import Clock
from podwire.node.errors import HookFailed
from podwire.node.handlers import Unreachable, http_get
from podwire.runtime.api import RuntimeService
from podwire.runtime.errors import RuntimeFault

HTTP_TIMEOUT = 30.0


async def run_hook(
    handler: LifecycleHandler,
    container: Container,
    container_id: str,
    pod_ip: str,
    *,
    runtime: RuntimeService,
    clock: Clock,
    timeout: float,
) -> None:
    """Run one hook for at most ``timeout`` seconds. Raises :class:`HookFailed`."""
    try:
        if handler.exec is not None:
            result = await runtime.exec_sync(container_id, tuple(handler.exec.command), timeout)
            if result.exit_code != 0:
                said = (result.stderr or result.stdout).decode(errors="replace").strip()[:1024]
                command = " ".join(handler.exec.command)
                raise HookFailed(f"command '{command}' exited with {result.exit_code}: {said}")
        elif handler.http_get is not None:
            code, _ = await http_get(handler.http_get, container, pod_ip, min(timeout, HTTP_TIMEOUT))
            if code >= 400:
                raise HookFailed(f"HTTP status {code}")
        elif handler.sleep is not None:
            await clock.sleep(min(handler.sleep.seconds, timeout))
        else:
            raise HookFailed("the handler has none of exec, httpGet and sleep")
    except RuntimeFault as fault:
        raise HookFailed(str(fault)) from fault
    except Unreachable as error:
        raise HookFailed(str(error)) from error
