"""Traces: the spans of one sample, from three processes and more, at a collector made for this test."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from servers import REPOSITORY, Cluster

WITHIN_S = 120.0

PROGRAM = """
import json, sys
import tensorhold
with tensorhold.open(sys.argv[1], sweep_every=None, **json.loads(sys.argv[2])) as store:
    exec(sys.argv[3])
    store.drain()
"""


class Collector(http.server.ThreadingHTTPServer):
    """Keeps the spans that it gets, each with the process that sent it."""

    daemon_threads = True

    def __init__(self) -> None:
        self.spans: list[tuple[int, dict[str, Any]]] = []
        super().__init__(("127.0.0.1", 0), Takes)

    def take(self, body: dict[str, Any]) -> None:
        for resource in body["resourceSpans"]:
            told = {one["key"]: one["value"] for one in resource["resource"]["attributes"]}
            assert told["service.name"] == {"stringValue": "tensorhold"}
            pid = int(told["process.pid"]["intValue"])
            self.spans += [(pid, span) for scope in resource["scopeSpans"] for span in scope["spans"]]


class Takes(http.server.BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        assert self.path == "/v1/traces"
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.take(body)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as started:
        thread = threading.Thread(target=started.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield started
        started.shutdown()
        thread.join(10)


def run(code: str, cluster: Cluster, store_name: str, collector: Collector) -> None:
    """Runs a process of its own with an open store."""
    env = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY / "python"),
        "TENSORHOLD_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_address[1]}",
    }
    command = [sys.executable, "-c", PROGRAM, store_name, json.dumps(cluster.settings()), code]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, env=env)
    assert ran.returncode == 0, ran.stderr


def test_one_sample_is_followed_through_three_processes(
    cluster: Cluster, store_name: str, collector: Collector
) -> None:
    run("store.put('a', {'x': b'1'}, groups=['g']); store.put('b', {'x': b'1'}, groups=())", cluster, store_name, collector)
    run("(lease,) = store.take('g'); lease.get(); lease.nack()", cluster, store_name, collector)
    run("(lease,) = store.take('g'); lease.get(); lease.ack()", cluster, store_name, collector)
    traces = defaultdict(list)
    for pid, span in collector.spans:
        traces[span["traceId"]].append((pid, span))
    assert len(traces) == 2, "one for each sample"

    def sample(span: dict[str, Any]) -> str:
        told = {one["key"]: one["value"] for one in span["attributes"]}
        return str(told["tensorhold.sample"]["stringValue"])

    (spans,) = [spans for spans in traces.values() if sample(spans[0][1]) == "a"]
    in_time = sorted(spans, key=lambda one: int(one[1]["startTimeUnixNano"]))
    names = [span["name"] for _, span in in_time]
    assert names == ["put", "take", "get", "nack", "take", "get", "ack", "free"]
    assert len({pid for pid, _ in spans}) == 3
    root = in_time[0][1]
    assert "parentSpanId" not in root
    assert {span["parentSpanId"] for _, span in in_time[1:]} == {root["spanId"]}
    assert len({span["spanId"] for _, span in spans}) == len(spans)
    assert all(span["status"]["code"] == 1 for _, span in spans)
