"""Alternative names: given, found, taken away; they go where the device goes."""

from __future__ import annotations

import contextlib
import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.kernel import altnames, links
from podwire.kernel.attributes import NESTED, STRING, attribute
from podwire.kernel.errors import KernelError, MalformedReply
from podwire.kernel.link_codec import HEADER
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.netns import Netns
from tests.kernel import helpers

LONG = "podwire-" + "x" * 119  # ALTIFNAMSIZ is 128, with the NUL


@pytest.mark.kernel
def test_a_name_goes_where_its_device_goes(sock: RouteSocket, pod: Netns, pod_sock: RouteSocket) -> None:
    sock.send(links.veth("a", "b"))
    index = helpers.link("a")["ifindex"]
    sock.send(altnames.add(index, LONG), altnames.add(index, "second"))
    assert helpers.link("a")["altnames"] == [LONG, "second"]
    found = altnames.find(sock, LONG)
    assert found is not None
    assert (found.index, found.name) == (index, "a")
    sock.send(links.configure(index, netns=pod, name="c"))
    assert altnames.find(sock, LONG) is None
    assert [(name, link.name) for name, link in altnames.beginning(pod_sock, "podwire-")] == [(LONG, "c")]
    inner = helpers.link("c", "pod")["ifindex"]
    pod_sock.send(altnames.delete(inner, LONG))
    assert helpers.link("c", "pod")["altnames"] == ["second"]
    assert altnames.beginning(pod_sock, "podwire-") == []


@pytest.mark.kernel
def test_what_is_refused(sock: RouteSocket) -> None:
    sock.send(links.veth("a", "b"))
    index = helpers.link("a")["ifindex"]
    sock.send(altnames.add(index, "other"))
    for name in ("b", "other"):
        with pytest.raises(KernelError) as caught:
            sock.send(altnames.add(index, name))
        assert caught.value.errno == errno.EEXIST
    with pytest.raises(KernelError) as caught:
        sock.send(altnames.delete(index, "nosuch"))
    assert caught.value.errno in {errno.EINVAL, errno.ENOENT}


@given(st.lists(st.text(st.characters(codec="ascii", exclude_characters="\0"), min_size=1), max_size=4))
def test_names_are_read_as_they_are_written(wanted: list[str]) -> None:
    nest = b"".join(STRING.pack(53, name) for name in wanted)
    body = HEADER.pack(0, 0, 1, 0, 0) + STRING.pack(3, "a") + attribute(52 | NESTED, nest)
    assert altnames.names(body) == wanted


@given(st.binary())
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(MalformedReply):
        altnames.names(HEADER.pack(0, 0, 1, 0, 0) + data)


def test_an_attribute_that_is_too_long() -> None:
    with pytest.raises(MalformedReply, match="attribute of 40 bytes"):
        altnames.names(HEADER.pack(0, 0, 1, 0, 0) + struct.pack("=HHI", 40, 52, 0))
