"""One question and its answer between two namespaces, by TCP or UDP."""

from __future__ import annotations

import contextlib
import socket

from podwire.kernel import netns


def exchanges(client: str, server: str, address: str, protocol: str, *, seconds: float = 2.0) -> bool:
    """Tell whether pod ``client`` gets an answer from ``address``, which pod ``server`` has."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM

    def opened(pod: str) -> socket.socket:
        with netns.open(f"/run/netns/{pod}") as inside:
            return inside.run(lambda: socket.socket(family, kind))

    with opened(server) as listening, opened(client) as asking:
        listening.bind((address, 0))
        for one in (listening, asking):
            one.settimeout(seconds)
        with contextlib.suppress(TimeoutError, OSError):
            if protocol == "tcp":
                listening.listen()
                asking.connect(listening.getsockname())
                accepted, _ = listening.accept()
                with accepted:
                    accepted.settimeout(seconds)
                    asking.sendall(b"?")
                    accepted.sendall(accepted.recv(1) + b"!")
                    return asking.recv(2, socket.MSG_WAITALL) == b"?!"
            asking.sendto(b"?", listening.getsockname())
            question, peer = listening.recvfrom(9)
            listening.sendto(question + b"!", peer)
            return asking.recv(9) == b"?!"
    return False
