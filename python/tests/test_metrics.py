"""Metrics: what a process tells of itself, in the text format of Prometheus."""

from __future__ import annotations

import http.client
import os
import socket
import time
from collections.abc import Iterator
from urllib.request import urlopen

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import tensorhold
import tensorhold.metrics
from conftest import OpenStore
from tensorhold import FeatureStore, kv
from servers import REPOSITORY, Cluster
from test_processes import in_child

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: str) -> Series:
    """Every series, by its name and labels. A second line for one is an error of ours."""
    found: Series = {}
    for family in text_string_to_metric_families(text):
        assert family.type in ("counter", "gauge", "histogram"), family
        assert family.documentation, family
        for sample in family.samples:
            series = (sample.name, frozenset(sample.labels.items()))
            assert series not in found, series
            found[series] = sample.value
    return found


def value(text: str, name: str, **labels: str) -> float | None:
    return parsed(text).get((name, frozenset(labels.items())))


def told(name: str, **labels: str) -> float | None:
    return value(tensorhold.metrics.text(), name, **labels)


@pytest.fixture
def server() -> Iterator[tensorhold.metrics.Server]:
    with tensorhold.metrics.start_http() as started:
        yield started


def test_the_life_of_a_sample_is_told(store: FeatureStore, store_name: str) -> None:
    store.put("a", {"x": bytes(1000)}, groups=["g"])
    (lease,) = store.take("g")
    lease.get()
    assert told("tensorhold_leases_held", store=store_name) == 1
    lease.ack()
    store.drain()
    with pytest.raises(tensorhold.NotFound):
        store.get("none")
    text = tensorhold.metrics.text()
    for operation in ("put", "lease_next", "get", "ack"):
        of = {"store": store_name, "operation": operation, "outcome": "ok"}
        assert value(text, "tensorhold_operation_seconds_count", **of) == 1, operation
        assert value(text, "tensorhold_operation_seconds_bucket", **of, le="+Inf") == 1
        assert 0 < (value(text, "tensorhold_operation_seconds_sum", **of) or 0) < 60
    assert value(text, "tensorhold_samples_put_total", store=store_name) == 1
    assert value(text, "tensorhold_put_bytes_total", store=store_name) == 1000
    assert value(text, "tensorhold_reclaim_seconds_count", store=store_name) == 1
    objects = "tensorhold_engine_objects_total"
    assert value(text, objects, store=store_name, call="put", outcome="stored") == 1
    assert value(text, objects, store=store_name, call="remove", outcome="removed") == 1
    assert value(text, "tensorhold_engine_bytes_total", store=store_name, direction="in") == 1000
    committed = value(text, "tensorhold_index_call_seconds_count", store=store_name, call="transact", outcome="ok")
    assert committed and committed >= 5
    assert (value(text, "tensorhold_index_request_transactions_count") or 0) >= committed
    assert value(text, "tensorhold_build_info", version=tensorhold.version()) == 1


def test_counts_outlive_a_store_and_add_up(open_store: OpenStore, store_name: str) -> None:
    first, second = open_store(), open_store()
    first.put("a", {"x": b"1"}, groups=())
    second.put("b", {"x": b"2"}, groups=())
    assert told("tensorhold_samples_put_total", store=store_name) == 2
    pool = told("tensorhold_pool_bytes", store=store_name, state="budget")
    first.close()
    assert told("tensorhold_samples_put_total", store=store_name) == 2
    assert told("tensorhold_pool_bytes", store=store_name, state="budget") == (pool or 0) / 2


def test_labels_name_no_sample_and_no_session(store: FeatureStore) -> None:
    for at in range(20):
        store.put(f"only-this-test-{at}", {"x": b"1"}, groups=["only-this-group"])
    session = str(store.health()["session"])
    text = tensorhold.metrics.text()
    assert "only-this" not in text
    labels = {label for _, labels in parsed(text) for label, _ in labels}
    assert labels <= {
        "call", "cause", "direction", "found", "kind", "le", "operation", "outcome", "state", "store", "tier", "version", "why",
    }  # fmt: skip
    assert session not in {value for _, labels in parsed(text) for _, value in labels}


def test_pages_are_told(cluster: Cluster) -> None:
    settings = cluster.settings()
    del settings["etcd"]
    before = parsed(tensorhold.metrics.text())

    def more(name: str, **labels: str) -> float:
        series = (name, frozenset(labels.items()))
        return parsed(tensorhold.metrics.text()).get(series, 0) - before.get(series, 0)

    with kv.PageStore(**settings) as pages:
        page = np.arange(4096, dtype=np.uint8)
        pages.register(page)
        address = page.__array_interface__["data"][0]
        keys = [f"kv/metrics/{os.getpid()}-{time.monotonic_ns()}"]
        pages.put(keys, [address], [page.nbytes])
        pages.get([*keys, "kv/metrics/none"], [address, address + 2048], [page.nbytes, 2048])
        pages.remove(keys)
    # The store is closed: its counts stay.
    assert more("tensorhold_pages_put_total", outcome="stored") == 1
    assert more("tensorhold_page_bytes_total", direction="out") == page.nbytes
    assert more("tensorhold_engine_objects_total", store="kv", call="put", outcome="stored") == 1
    assert more("tensorhold_engine_objects_total", store="kv", call="remove", outcome="removed") == 1


def test_http(server: tensorhold.metrics.Server, store: FeatureStore, store_name: str) -> None:
    store.put("a", {"x": b"1"}, groups=())
    with urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert value(answer.read().decode(), "tensorhold_samples_put_total", store=store_name) == 1
    for method, path, status in [("GET", "/none", 404), ("POST", "/metrics", 501), ("GET", "/?x=1", 200)]:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.request(method, path)
        assert connection.getresponse().status == status, (method, path)
        connection.close()


def test_a_server_is_closed_once_and_for_all(store: FeatureStore) -> None:
    server = tensorhold.metrics.start_http()
    assert not server.closed and str(server.port) in repr(server)
    with pytest.raises(tensorhold.Unavailable, match="free port"):
        tensorhold.metrics.start_http(port=server.port)
    with pytest.raises(tensorhold.Invalid):
        tensorhold.metrics.start_http(port=70000)
    server.close()
    server.close()
    assert server.closed
    with pytest.raises(ConnectionError):
        socket.create_connection(("127.0.0.1", server.port), timeout=5)


def test_connections_are_bounded_in_number_and_in_time(
    server: tensorhold.metrics.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorhold.metrics, "CONNECTION_WITHIN_S", 2.0)
    idle = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(9)]
    try:
        begun = time.monotonic()
        # One of nine is closed at once, the others when their time is up, although they say nothing.
        idle[8].settimeout(1.0)
        assert idle[8].recv(1) == b""
        for connection in idle[:8]:
            assert connection.recv(1) == b""
        assert 1.0 < time.monotonic() - begun < 20
    finally:
        for connection in idle:
            connection.close()
    with urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
        assert answer.status == 200


def test_a_forked_child_counts_from_zero_and_has_no_server(
    server: tensorhold.metrics.Server, store: FeatureStore, store_name: str
) -> None:
    store.put("a", {"x": b"1"}, groups=())

    def child() -> None:
        assert server.closed
        server.close()
        assert told("tensorhold_samples_put_total", store=store_name) is None
        assert told("tensorhold_build_info", version=tensorhold.version()) == 1
        with tensorhold.metrics.start_http() as own:
            assert own.port != server.port
            with urlopen(f"http://127.0.0.1:{own.port}/metrics", timeout=10) as answer:
                assert "samples_put" not in answer.read().decode()

    in_child(child)
    # The parent's server and counts are as they were.
    with urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
        assert value(answer.read().decode(), "tensorhold_samples_put_total", store=store_name) == 1
    server.close()
    with pytest.raises(ConnectionError):  # no child keeps the port
        socket.create_connection(("127.0.0.1", server.port), timeout=5)


def test_a_program_with_prometheus_client_registers_a_collector(store: FeatureStore, store_name: str) -> None:
    registry = CollectorRegistry()
    registry.register(tensorhold.metrics.collector())
    store.put("a", {"x": b"1"}, groups=())
    assert registry.get_sample_value("tensorhold_samples_put_total", {"store": store_name}) == 1
    # The other library writes the same text.
    series = {name: found for name, found in parsed(generate_latest(registry).decode()).items() if "seconds" not in name[0]}
    ours = {name: found for name, found in parsed(tensorhold.metrics.text()).items() if "seconds" not in name[0]}
    assert set(series) == set(ours)


def test_every_metric_that_is_told_is_on_the_page(store: FeatureStore) -> None:
    page = (REPOSITORY / "docs/metrics.md").read_text()
    for line in tensorhold.metrics.text().splitlines():
        if line.startswith("# TYPE "):
            assert f"| `{line.split()[2]}` |" in page, line


def test_off(cluster: Cluster, store_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from test_processes import run

    monkeypatch.setenv("TENSORHOLD_METRICS", "off")
    said = run(
        """
import tensorhold.metrics
with tensorhold.open(sys.argv[1], **settings) as store:
    store.put("a", {"x": b"1"}, groups=())
    print(repr(tensorhold.metrics.text()), store.health()["counters"]["puts"])
""",
        cluster,
        store_name,
    )
    assert said.split() == ["''", "1"]


def test_health_tells_free_budget_oldest_lease_and_clock(open_store: OpenStore) -> None:
    store = open_store(budget=10_000)
    store.put("a", {"x": bytes(4000)}, groups=["g"])
    (lease,) = store.take("g")
    store.sweep()
    health = store.health()
    assert health["free_budget"] == 6000 and health["leases"] == 1
    assert 0 < health["oldest_lease"] < 60
    assert health["clock"]["tick"] >= 1 and 0 <= health["clock"]["stood_still"] < 60
    lease.ack()
    store.drain()
    health = store.health()
    assert health["free_budget"] == 10_000 and health["leases"] == 0 and health["oldest_lease"] is None
