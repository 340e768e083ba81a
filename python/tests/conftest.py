"""Fixtures for all tests: real servers, and stores on them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import tensorhold
from servers import Cluster, running_cluster

OpenStore = Callable[..., tensorhold.FeatureStore]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One master, one holder, one etcd, shared by all tests: use stores of your own, and break nothing.

    Samples outlive the store that put them, so the holder has room for those of all tests."""
    with running_cluster(segment_mib=1024) as running:
        yield running


@pytest.fixture(scope="module")
def ssd_cluster() -> Iterator[Cluster]:
    """One master and two holders of 64 MiB, each with an SSD folder."""
    with running_cluster(holders=2, segment_mib=64, ssd=True, lease_ttl="1s") as running:
        os.environ.update({**running.client_env, "MC_LOG_LEVEL": "ERROR"})  # read when the engine is loaded
        yield running


@pytest.fixture(scope="module")
def engine(cluster: Cluster) -> Iterator[Any]:
    """A client of Mooncake's own, as a serving engine has one."""
    from mooncake.store import MooncakeDistributedStore

    client = MooncakeDistributedStore()
    assert client.setup("127.0.0.1", cluster.metadata, 0, 16 << 20, "tcp", "", cluster.master) == 0
    yield client
    client.close()


@pytest.fixture
def start_cluster() -> Iterator[Callable[..., Cluster]]:
    """Starts clusters that this test has for itself, with the options of ``running_cluster``; each ends with the test."""
    with ExitStack() as open_clusters:
        yield lambda **options: open_clusters.enter_context(running_cluster(**options))


@pytest.fixture
def store_name() -> str:
    """A store that no other test uses."""
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def open_store(cluster: Cluster, store_name: str) -> Iterator[OpenStore]:
    """Opens this test's store, as often as wanted: each is a member of its own, as a process would be."""
    with ExitStack() as open_stores:

        def opened(**settings: Any) -> tensorhold.FeatureStore:
            usual = {"pool_bytes": 256 << 20, "sweep_every": None, **cluster.settings()}
            return open_stores.enter_context(tensorhold.open(store_name, **{**usual, **settings}))

        yield opened


@pytest.fixture
def store(open_store: OpenStore) -> tensorhold.FeatureStore:
    """A store of this test's own."""
    return open_store()
