"""An image made on the spot from this machine's static busybox; nothing is pulled."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import shutil
import tarfile
import time
import urllib.request
from pathlib import Path
from typing import Any

NAME = "podwire.test/busybox:1"
PROGRAMS = ("sh", "sleep", "httpd", "wget", "cat", "ip", "nc", "dd")
PAGE = "/page"
CONTENT = b"a page\n"
DIRECTORIES = ("bin", "proc", "sys", "dev", "tmp", "etc", PAGE[1:])
_TYPE = "application/vnd.oci.image"


def archive(path: Path) -> Path:
    """Write the archive to ``path``: busybox under its own names, and ``PAGE`` with an index.html."""
    layer = _layer()
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    config = _json(
        {
            "architecture": architecture,
            "os": "linux",
            "config": {"Entrypoint": ["/bin/sleep", "1000000"]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{_TYPE}.manifest.v1+json",
            "config": _descriptor(config, "config.v1+json"),
            "layers": [_descriptor(layer, "layer.v1.tar")],
        }
    )
    named = {**_descriptor(manifest, "manifest.v1+json"), "annotations": {"io.containerd.image.name": NAME}}
    with tarfile.open(path, "w") as tar:
        _add(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _add(tar, "index.json", _json({"schemaVersion": 2, "manifests": [named]}))
        for blob in (layer, config, manifest):
            _add(tar, f"blobs/sha256/{_digest(blob)[7:]}", blob)
    return path


def root(directory: Path) -> Path:
    """Lay the same files out as a root directory."""
    for name in DIRECTORIES:
        (directory / name).mkdir(parents=True)
    shutil.copy(_busybox(), directory / "bin/busybox")
    (directory / PAGE[1:] / "index.html").write_bytes(CONTENT)
    for name in PROGRAMS:
        (directory / "bin" / name).symlink_to("busybox")
    return directory


def page(url: str) -> bytes:
    """Fetch what a web server serves, which may be just about to listen."""
    limit = time.monotonic() + 10
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            with opener.open(url, timeout=5) as answer:
                return bytes(answer.read())
        except OSError:
            if time.monotonic() > limit:
                raise
            time.sleep(0.02)


def _busybox() -> str:
    found = shutil.which("busybox")
    assert found is not None
    return found


def _layer() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in DIRECTORIES:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        _add(tar, "bin/busybox", Path(_busybox()).read_bytes(), mode=0o755)
        _add(tar, f"{PAGE[1:]}/index.html", CONTENT)
        for name in PROGRAMS:
            entry = tarfile.TarInfo(f"bin/{name}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(entry)
    return out.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))


def _descriptor(blob: bytes, kind: str) -> dict[str, Any]:
    return {"mediaType": f"{_TYPE}.{kind}", "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
