"""The watch over those who wait for an answer."""

from __future__ import annotations

import os
import socket

from podwire.agent.caller import Peer
from podwire.agent.client import Client
from podwire.agent.counts import Counts
from podwire.agent.guard import Guard


def test_a_request_that_goes_on_past_the_end_writes_to_no_descriptor_of_others() -> None:
    guard = Guard(Counts())
    guard.close()
    ours, theirs = socket.socketpair()
    client = Client(ours, Peer(0, 0, 0))
    client.give_up_at = 0.0
    others = [os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(4)]
    try:
        guard.watch(client)
        guard.answers(client)
        guard.forget(client)
        values = []
        for each in others:
            try:
                values.append(os.eventfd_read(each))
            except BlockingIOError:
                values.append(0)
        assert values == [0, 0, 0, 0]
    finally:
        for each in others:
            os.close(each)
        ours.close()
        theirs.close()
