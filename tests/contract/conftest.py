"""Tests that hold for every API server: the embedded one, or that of ``PODWIRE_TEST_KUBECONFIG``."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.contract import cluster as clusters
from tests.contract.api import Api
from tests.contract.cluster import Cluster

_left_out: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "embedded(why): a test that only the embedded server can take; told where it is left out"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if clusters.real() is None:
        return
    for item in [item for item in items if item.get_closest_marker("embedded")]:
        mark = item.get_closest_marker("embedded")
        assert mark is not None
        _left_out.append(f"{item.nodeid}: {mark.args[0]}")
        items.remove(item)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    where = clusters.real()
    if where is not None:
        terminalreporter.write_line(f"contract tests ran against {where}; left out: {len(_left_out)}")
        for told in _left_out:
            terminalreporter.write_line(f"  {told}")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    path = clusters.real()
    if path is not None:
        yield clusters.of_file(path)
        return
    with clusters.embedded(tmp_path_factory.mktemp("apiserver")) as found:
        yield found


@pytest.fixture
async def api(cluster: Cluster) -> AsyncIterator[Api]:
    """Requests in a namespace of the test's own, which is deleted behind it."""
    found = Api(cluster)
    try:
        found.namespace = f"contract-{uuid.uuid4().hex[:8]}"
        (await found.create("/api/v1/namespaces", {"metadata": {"name": found.namespace}})).ok(201)
        await found.until(found.at("serviceaccounts", "default"), lambda answer: answer.code == 200)
        yield found
        (await found.delete(f"/api/v1/namespaces/{found.namespace}")).ok()
    finally:
        await found.close()
