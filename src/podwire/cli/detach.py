"""``up --detach``: the same node in the background, and the word whether it started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import IO

import msgspec

from podwire.cli.errors import CommandError

_TAIL = 20


class Started(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the background process says once: it is ready, or why it is not."""

    error: str = ""
    hint: str = ""
    exit_code: int = 0


def start(arguments: Sequence[str], first_words: IO[bytes]) -> int:
    """Run ``podwire`` with ``arguments`` in a session of its own and wait for its word; its process ID.

    The process gets ``--ready-fd``, where it says :class:`Started`. Until it opens its log, it writes to
    ``first_words``; should it end without a word, the error shows that.
    """
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    with os.fdopen(read_end, "rb") as reader:
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "podwire", *arguments, "--ready-fd", str(write_end)],
                stdin=subprocess.DEVNULL,
                stdout=first_words,
                stderr=first_words,
                pass_fds=(write_end,),
                start_new_session=True,
            )
        finally:
            os.close(write_end)
        said = reader.read()
    if said:
        word = msgspec.json.decode(said, type=Started)
    else:
        first_words.seek(0)
        tail = first_words.read().decode(errors="replace").splitlines()[-_TAIL:]
        word = Started(error="the node ended while it started", hint="\n".join(tail), exit_code=1)
    if word.error:
        process.wait()
        raise CommandError(word.error, hint=word.hint, exit_code=word.exit_code)
    # It lives on; nothing of it is ours to wait for.
    process.returncode = 0
    return process.pid


class Waiter:
    """The process that waits for a word whether the node has started. It hears one, and then is gone."""

    def __init__(self, ready_fd: int) -> None:
        self._fd = ready_fd
        os.set_inheritable(ready_fd, False)

    def tell(self, word: Started) -> None:
        """Say how the start went, unless that has been said."""
        if self._fd < 0:
            return
        data = msgspec.json.encode(word)
        while data:
            data = data[os.write(self._fd, data) :]
        os.close(self._fd)
        self._fd = -1
