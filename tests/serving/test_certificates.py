"""Certificates made without any tool, against OpenSSL and its strictest rules."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from podwire.apiserver.files import Files
from podwire.serving import certificates


async def handshake(server: ssl.SSLContext, authority: str, name: str) -> None:
    client = ssl.create_default_context(cadata=authority)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    listener = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0, ssl=server)
    try:
        port = listener.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname=name)
        writer.close()
    finally:
        listener.close()
        await listener.wait_closed()


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1"])
async def test_clients_that_are_strict_accept_it(tmp_path: Path, name: str) -> None:
    files = Files(tmp_path)
    await handshake(files.tls(), files.authority.read_text(), name)


async def test_another_name_or_authority_is_refused(tmp_path: Path) -> None:
    files = Files(tmp_path)
    context = files.tls()
    with pytest.raises(ssl.SSLCertVerificationError):
        await handshake(context, files.authority.read_text(), "example.com")
    with pytest.raises(ssl.SSLCertVerificationError):
        await handshake(context, certificates.make("other", ("localhost",)).authority, "localhost")


def test_what_is_there_is_used_again_until_it_ends(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.tls()
    first = files.authority.read_text()
    files.tls()
    assert files.authority.read_text() == first
    files.tls(("127.0.0.9",))
    second = files.authority.read_text()
    assert second != first
    names = tmp_path / "names"
    old = datetime.now(UTC) - certificates.LIFETIME + timedelta(days=10)
    text = names.read_text()
    names.write_text(text[: text.index('"made"')] + f'"made": "{old.isoformat()}"}}')
    files.tls(("127.0.0.9",))
    assert files.authority.read_text() != second


def test_the_token_stays(tmp_path: Path) -> None:
    assert Files(tmp_path).token() == Files(tmp_path).token()
    assert len(Files(tmp_path).token()) >= 40
