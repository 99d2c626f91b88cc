"""The process that supervisors are forked from: Python started once, so that a sandbox costs a fork.

Run as a program with one argument, the descriptor of a SOCK_SEQPACKET socket. Each packet is a
:class:`podwire.runtime.supervisor.Spec` as a JSON list, with the supervisor's first connection attached. It
ends when the socket does. No module that is not needed by supervisors may be imported here: they share its
memory.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys

from podwire.runtime import supervisor, wire


def main(fd: int) -> None:
    """Serve until the other side is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended supervisors are not ours to wait for
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    gc.collect()
    gc.freeze()
    while True:
        data, fds, _, _ = socket.recv_fds(sock, 1 << 17, 1)
        if not data:
            return
        control = socket.socket(fileno=fds[0])
        try:
            pid = os.fork()
        except OSError as error:
            control.sendall(wire.encode({"event": "failed", "message": f"fork: {error.strerror}"}))
        else:
            if pid == 0:
                supervisor.main(supervisor.Spec(*json.loads(data)), control)
        control.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
