"""The official Python client lists pods into a dict: ``python kubelist_peer.py PORT PAGE``. Prints JSON.

Run by a Python that has ``kubernetes``; of Podwire it needs nothing.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time
from typing import Any


def main(port: int, page: int) -> None:
    """List everything once, page by page (0: all at once), and tell what that took."""
    client: Any = importlib.import_module("kubernetes.client")
    configuration = client.Configuration()
    configuration.host = f"http://127.0.0.1:{port}"
    api = client.CoreV1Api(client.ApiClient(configuration))
    api.list_pod_for_all_namespaces(limit=1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    store: dict[tuple[str, str], Any] = {}
    token = ""
    while True:
        options: dict[str, Any] = {"_continue": token} if token else {}
        found = api.list_pod_for_all_namespaces(limit=page or None, **options)
        for item in found.items:
            store[item.metadata.namespace, item.metadata.name] = item
        token = found.metadata._continue or ""
        if not token:
            break
    took = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"pods": len(store), "seconds": took, "before_kib": before, "peak_kib": peak}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
