"""Manifests for the tests of podwire.kube."""

from __future__ import annotations

import pytest

from podwire.kube.errors import FieldError, ManifestError
from podwire.kube.manifest import load_pod
from podwire.kube.objects import Pod

WEB = """\
apiVersion: v1
kind: Pod
metadata:
  name: web
  labels:
    app: web
spec:
  containers:
  - name: web
    command: ["/bin/busybox", "httpd"]
    ports:
    - containerPort: 80
      hostPort: 8080
"""


def pod(text: str = WEB) -> Pod:
    loaded = load_pod(text, "web.yaml")
    assert loaded is not None
    return loaded


def errors(text: str | bytes, *, static: bool = True) -> list[FieldError]:
    with pytest.raises(ManifestError) as caught:
        load_pod(text, "web.yaml", static=static)
    return list(caught.value.errors)


def spec(text: str, extra: str = "") -> str:
    """A manifest with ``text`` in the only container and ``extra`` in the spec, both in flow style."""
    tail = f", {extra}" if extra else ""
    container = f"{{name: a, {text}}}" if text else "{name: a}"
    return (
        f"{{apiVersion: v1, kind: Pod, metadata: {{name: web}}, spec: {{containers: [{container}]{tail}}}}}"
    )
