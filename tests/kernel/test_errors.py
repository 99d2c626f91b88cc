"""What a person reads, and what a program does."""

from __future__ import annotations

import errno
import pickle

from podwire.kernel.errors import (
    InvalidValue,
    KernelError,
    MalformedReply,
    NetnsError,
    NetnsMissing,
    NotANetns,
)


def test_the_text_has_the_operation_the_subject_the_number_and_the_kernels_words() -> None:
    error = KernelError(errno.EEXIST, "create veth", "eth0")
    assert str(error) == "create veth eth0: File exists (EEXIST)"
    assert str(KernelError(errno.EINVAL, "add route", "::/0", "bad")) == (
        "add route ::/0: Invalid argument (EINVAL): bad"
    )


def test_an_invalid_value_is_told_without_system_talk() -> None:
    error = InvalidValue("link mtu -5", "out of range")
    assert str(error) == "link mtu -5: out of range"
    assert error.errno == errno.EINVAL
    assert isinstance(error, ValueError)


def test_errors_survive_pickling() -> None:
    for error in (
        KernelError(errno.EPERM, "do", "it", "why"),
        InvalidValue("a", "b"),
        MalformedReply("c", "d"),
        NetnsMissing(errno.ENOENT, "open", "/x"),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert (str(copy), copy.errno) == (str(error), error.errno)


def test_the_tree() -> None:
    assert issubclass(NetnsMissing, NetnsError)
    assert issubclass(NotANetns, NetnsError)
    assert issubclass(NetnsError, KernelError)
