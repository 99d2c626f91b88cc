"""A server's certificates: an authority of its own, and those that it signs.

kubectl and other clients built on client-go send a token over TLS only, so a loopback port needs a
certificate too; nothing more is asked of it than to be the one in the kubeconfig. Keys are ECDSA on P-256.
They are made and sign when the state directory is new: that this arithmetic takes other times for other keys
tells nobody anything. Source: RFC 5280, RFC 5480, SEC 1 and FIPS 186-4.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import secrets
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

_P = 0xFFFFFFFF00000001000000000000000000000000FFFFFFFFFFFFFFFFFFFFFFFF
_N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_A = -3
_G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
LIFETIME = timedelta(days=3650)
"""How long a certificate is good."""
_EARLIER = timedelta(hours=1)
_SERVER_AUTH, _CLIENT_AUTH = "1.3.6.1.5.5.7.3.1", "1.3.6.1.5.5.7.3.2"

Point = tuple[int, int] | None


class Subject(NamedTuple):
    """Whom a certificate is about: to Kubernetes the common name is a user, organizations are its groups."""

    common_name: str
    organizations: tuple[str, ...] = ()


class Issued(NamedTuple):
    """PEM texts of a certificate and its key."""

    certificate: str
    key: str


class Bundle(NamedTuple):
    """The authority as PEM text, and what it has issued."""

    authority: str
    server: Issued
    client: Issued | None


def make(
    owner: str, names: tuple[str, ...], *, client: Subject | None = None, now: datetime | None = None
) -> Bundle:
    """An authority of ``owner``, a certificate by it for DNS names and IP addresses, and one for a client."""
    now = now or datetime.now(UTC)
    root, issuer = _Key(), Subject(f"{owner}-ca")
    authority = _certificate(
        subject=issuer,
        issuer=issuer,
        key=root,
        signer=root,
        now=now,
        extensions=[
            _extension("2.5.29.19", _sequence(_der(0x01, b"\xff")), critical=True),
            _extension("2.5.29.15", _der(0x03, b"\x01\x06"), critical=True),
            _extension("2.5.29.14", _der(0x04, root.identifier)),
        ],
    )

    def issued(subject: Subject, usage: str, *more: bytes) -> Issued:
        key = _Key()
        content = _certificate(
            subject=subject,
            issuer=issuer,
            key=key,
            signer=root,
            now=now,
            extensions=[
                _extension("2.5.29.19", _sequence(), critical=True),
                _extension("2.5.29.15", _der(0x03, b"\x07\x80"), critical=True),
                _extension("2.5.29.37", _sequence(_oid(usage))),
                _extension("2.5.29.14", _der(0x04, key.identifier)),
                _extension("2.5.29.35", _sequence(_der(0x80, root.identifier))),
                *more,
            ],
        )
        return Issued(_pem("CERTIFICATE", content), key.pem)

    return Bundle(
        _pem("CERTIFICATE", authority),
        issued(Subject(owner), _SERVER_AUTH, _extension("2.5.29.17", _sequence(*map(_alternative, names)))),
        None if client is None else issued(client, _CLIENT_AUTH),
    )


class _Key:
    def __init__(self) -> None:
        self._secret = secrets.randbelow(_N - 1) + 1
        point = _multiply(self._secret, _G)
        assert point is not None
        self._public = b"\x04" + point[0].to_bytes(32, "big") + point[1].to_bytes(32, "big")
        self.identifier = hashlib.sha1(self._public, usedforsecurity=False).digest()

    @property
    def info(self) -> bytes:
        """SubjectPublicKeyInfo."""
        algorithm = _sequence(_oid("1.2.840.10045.2.1"), _oid("1.2.840.10045.3.1.7"))
        return _sequence(algorithm, _der(0x03, b"\0" + self._public))

    @property
    def pem(self) -> str:
        """ECPrivateKey (RFC 5915)."""
        content = _sequence(
            _integer(1),
            _der(0x04, self._secret.to_bytes(32, "big")),
            _der(0xA0, _oid("1.2.840.10045.3.1.7")),
            _der(0xA1, _der(0x03, b"\0" + self._public)),
        )
        return _pem("EC PRIVATE KEY", content)

    def sign(self, data: bytes) -> bytes:
        """ECDSA with SHA-256, as DER."""
        digest = int.from_bytes(hashlib.sha256(data).digest(), "big")
        while True:
            nonce = secrets.randbelow(_N - 1) + 1
            point = _multiply(nonce, _G)
            assert point is not None
            r = point[0] % _N
            s = pow(nonce, -1, _N) * (digest + r * self._secret) % _N
            if r and s:
                return _sequence(_integer(r), _integer(s))


def _add(one: Point, other: Point) -> Point:
    if one is None or other is None:
        return one or other
    if one[0] == other[0]:
        if (one[1] + other[1]) % _P == 0:
            return None
        slope = (3 * one[0] * one[0] + _A) * pow(2 * one[1], -1, _P) % _P
    else:
        slope = (other[1] - one[1]) * pow(other[0] - one[0], -1, _P) % _P
    x = (slope * slope - one[0] - other[0]) % _P
    return x, (slope * (one[0] - x) - one[1]) % _P


def _multiply(factor: int, point: Point) -> Point:
    result: Point = None
    while factor:
        if factor & 1:
            result = _add(result, point)
        point = _add(point, point)
        factor >>= 1
    return result


def _certificate(
    *, subject: Subject, issuer: Subject, key: _Key, signer: _Key, now: datetime, extensions: list[bytes]
) -> bytes:
    algorithm = _sequence(_oid("1.2.840.10045.4.3.2"))
    content = _sequence(
        _der(0xA0, _integer(2)),
        _integer(secrets.randbits(126) | 1 << 126),
        algorithm,
        _name(issuer),
        _sequence(_time(now - _EARLIER), _time(now + LIFETIME)),
        _name(subject),
        key.info,
        _der(0xA3, _sequence(*extensions)),
    )
    return _sequence(content, algorithm, _der(0x03, b"\0" + signer.sign(content)))


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def _sequence(*parts: bytes) -> bytes:
    return _der(0x30, b"".join(parts))


def _integer(value: int) -> bytes:
    return _der(0x02, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _oid(text: str) -> bytes:
    first, second, *rest = map(int, text.split("."))
    content = b""
    for number in (first * 40 + second, *rest):
        groups = [number & 0x7F]
        while number := number >> 7:
            groups.append(number & 0x7F | 0x80)
        content += bytes(reversed(groups))
    return _der(0x06, content)


def _name(subject: Subject) -> bytes:
    parts = [("2.5.4.10", one) for one in subject.organizations] + [("2.5.4.3", subject.common_name)]
    return _sequence(*(_der(0x31, _sequence(_oid(oid), _der(0x0C, text.encode()))) for oid, text in parts))


def _time(moment: datetime) -> bytes:
    if moment.year < 2050:
        return _der(0x17, moment.strftime("%y%m%d%H%M%SZ").encode())
    return _der(0x18, moment.strftime("%Y%m%d%H%M%SZ").encode())


def _extension(oid: str, value: bytes, *, critical: bool = False) -> bytes:
    marked = _der(0x01, b"\xff") if critical else b""
    return _sequence(_oid(oid), marked, _der(0x04, value))


def _alternative(name: str) -> bytes:
    try:
        return _der(0x87, ipaddress.ip_address(name).packed)
    except ValueError:
        return _der(0x82, name.encode())


def _pem(label: str, content: bytes) -> str:
    text = base64.encodebytes(content).decode().replace("\n", "")
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""])
