"""A server of one list of pods and of a steady stream of their changes, as cheap as Python can make it.

``python kubelist_server.py PODS RATE`` prints its port, and serves lists (with pages), and watches of RATE
events a second (watches that ask for initial events are refused). It needs nothing but Python.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from typing import Any
from urllib.parse import parse_qsl, urlsplit

VERSION = 1_000_000


def pod(number: int, version: int) -> dict[str, Any]:
    """A pod as an API server has it, of about 3 KB of JSON."""
    digest = hashlib.sha256(str(number).encode()).hexdigest()
    owner = hashlib.sha256(str(number // 10).encode()).hexdigest()
    name = f"web-{number // 10}-7c9d8f6b5-{digest[:5]}{number}"
    address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    mounts = [
        {
            "name": "kube-api-access",
            "readOnly": True,
            "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
        }
    ]
    conditions = [
        {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": "2026-01-02T03:04:05Z"}
        for kind in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    ]
    return {
        "metadata": {
            "name": name,
            "generateName": f"web-{number // 10}-7c9d8f6b5-",
            "namespace": f"team-{number % 50}",
            "uid": _uid(digest),
            "resourceVersion": str(version),
            "creationTimestamp": "2026-01-02T03:04:05Z",
            "labels": {"app": f"web-{number // 10}", "pod-template-hash": "7c9d8f6b5", "tier": "front"},
            "annotations": {"example.org/revision": str(version), "example.org/checksum": owner},
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": f"web-{number // 10}-7c9d8f6b5",
                    "uid": _uid(owner),
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            "volumes": [
                {
                    "name": "kube-api-access",
                    "projected": {
                        "sources": [
                            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                            {
                                "configMap": {
                                    "name": "kube-root-ca.crt",
                                    "items": [{"key": "ca.crt", "path": "ca.crt"}],
                                }
                            },
                        ],
                        "defaultMode": 420,
                    },
                }
            ],
            "containers": [
                {
                    "name": "web",
                    "image": "registry.example.org/team/web:1.2.3",
                    "args": ["--listen=:8080", "--log-level=info"],
                    "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
                    "env": [
                        {
                            "name": "POD_IP",
                            "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}},
                        },
                        {"name": "MODE", "value": "production"},
                    ],
                    "resources": {
                        "limits": {"cpu": "500m", "memory": "256Mi"},
                        "requests": {"cpu": "100m", "memory": "128Mi"},
                    },
                    "volumeMounts": mounts,
                    "livenessProbe": {
                        "httpGet": {"path": "/healthz", "port": "http", "scheme": "HTTP"},
                        "timeoutSeconds": 1,
                        "periodSeconds": 10,
                        "successThreshold": 1,
                        "failureThreshold": 3,
                    },
                    "terminationMessagePath": "/dev/termination-log",
                    "terminationMessagePolicy": "File",
                    "imagePullPolicy": "IfNotPresent",
                }
            ],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default",
            "serviceAccount": "default",
            "nodeName": f"node-{number % 100}",
            "securityContext": {},
            "schedulerName": "default-scheduler",
            "tolerations": [
                {
                    "key": f"node.kubernetes.io/{key}",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 300,
                }
                for key in ("not-ready", "unreachable")
            ],
            "priority": 0,
            "enableServiceLinks": True,
            "preemptionPolicy": "PreemptLowerPriority",
        },
        "status": {
            "phase": "Running",
            "conditions": conditions,
            "hostIP": f"192.168.0.{number % 100}",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "startTime": "2026-01-02T03:04:05Z",
            "containerStatuses": [
                {
                    "name": "web",
                    "state": {"running": {"startedAt": "2026-01-02T03:04:06Z"}},
                    "lastState": {},
                    "ready": True,
                    "restartCount": 0,
                    "image": "registry.example.org/team/web:1.2.3",
                    "imageID": "registry.example.org/team/web@sha256:"
                    + hashlib.sha256(owner.encode()).hexdigest(),
                    "containerID": f"containerd://{digest}",
                    "started": True,
                }
            ],
            "qosClass": "Burstable",
        },
    }


def _uid(digest: str) -> str:
    return "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]))


def encode(value: object) -> bytes:
    """JSON without white space, as Go writes it."""
    return json.dumps(value, separators=(",", ":")).encode()


class Server:
    """Lists and watches over HTTP/1.1."""

    def __init__(self, pods: int, rate: int) -> None:
        self.items = [encode(pod(number, VERSION - pods + number)) for number in range(pods)]
        self.rate = rate

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                target = head.split(b" ", 2)[1].decode()
                params = dict(parse_qsl(urlsplit(target).query))
                if params.get("watch"):
                    if params.get("sendInitialEvents"):
                        self.answer(writer, 422, encode({"kind": "Status", "code": 422, "reason": "Invalid"}))
                        continue
                    await self.watch(writer)
                    return
                self.answer(writer, 200, self.page(int(params.get("limit", "0")), params.get("continue", "")))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    @staticmethod
    def answer(writer: asyncio.StreamWriter, code: int, body: bytes) -> None:
        """A whole answer."""
        writer.write(
            b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            % (code, len(body))
        )
        writer.write(body)

    def page(self, limit: int, token: str) -> bytes:
        """A list, or a page of it."""
        begin = int(token or "0")
        end = begin + limit if limit else len(self.items)
        meta = {"resourceVersion": str(VERSION)}
        if end < len(self.items):
            meta["continue"] = str(end)
        return (
            b'{"kind":"PodList","apiVersion":"v1","metadata":'
            + encode(meta)
            + b',"items":['
            + b",".join(self.items[begin:end])
            + b"]}"
        )

    async def watch(self, writer: asyncio.StreamWriter) -> None:
        """Changes at the rate, each with the time at which it was due."""
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        began = time.monotonic()
        sent = 0
        while not writer.is_closing():
            due = int((time.monotonic() - began) * self.rate)
            while sent < due:
                found = pod(sent % len(self.items), VERSION + sent + 1)
                found["metadata"]["annotations"]["example.org/due"] = repr(began + (sent + 1) / self.rate)
                line = (
                    encode({"type": "MODIFIED", "object": {"kind": "Pod", "apiVersion": "v1", **found}})
                    + b"\n"
                )
                writer.write(b"%x\r\n%s\r\n" % (len(line), line))
                sent += 1
            await writer.drain()
            await asyncio.sleep(0.005)


async def main(pods: int, rate: int) -> None:
    """Serve until killed."""
    server = Server(pods, rate)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    size = sum(map(len, server.items)) // len(server.items)
    print(listening.sockets[0].getsockname()[1], size, flush=True)
    await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
