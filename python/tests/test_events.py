"""Events of the compiled module arrive in Python's logging, from real servers."""

from __future__ import annotations

import base64
import json
import logging
import os
import subprocess
import sys
import textwrap
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tensorhold
from conftest import OpenStore
from tensorhold import _events, _tensorhold
from servers import Cluster

PASSWORD = "a-password-that-nobody-may-see"
KEY = base64.b64encode(bytes(range(32))).decode()


class Kept(logging.Handler):
    """Keeps records, and lets a test wait for one."""

    def __init__(self) -> None:
        super().__init__(level=0)
        self.records: list[logging.LogRecord] = []
        self.some = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self.some:
            self.records.append(record)
            self.some.notify_all()

    def first(self, wanted: Callable[[logging.LogRecord], bool], within: float = 20.0) -> logging.LogRecord:
        with self.some:
            there = self.some.wait_for(lambda: any(wanted(record) for record in self.records), within)
            assert there, f"no such record; there are {[record.getMessage() for record in self.records]}"
            return next(record for record in self.records if wanted(record))


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler, logger = Kept(), logging.getLogger("tensorhold")
    before = logger.level
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(before)


def revoke_all(cluster: Cluster) -> None:
    """Ends every session of this cluster's etcd."""

    def call(path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(f"{cluster.etcd[0]}{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=10) as answer:
            told: dict[str, Any] = json.loads(answer.read())
        return told

    leases = call("/v3/lease/leases", {}).get("leases", [])
    assert leases
    for lease in leases:
        call("/v3/lease/revoke", {"ID": lease["ID"]})


def test_a_lost_session_is_a_warning_of_the_logger_named_after_the_part_that_saw_it(
    start_cluster: Callable[..., Cluster], kept: Kept
) -> None:
    cluster = start_cluster(segment_mib=64)
    began = time.time()
    settings = {**cluster.settings(), "sweep_every": 0.2, "pool_bytes": 16 << 20}
    with tensorhold.open("run", key=KEY, **settings) as store:
        store.put("a", {"x": b"bytes"}, groups=())
        revoke_all(cluster)
        record = kept.first(lambda record: record.name == "tensorhold.features.sessions")
        assert record.levelno == logging.WARNING and record.levelname == "WARNING"
        assert "session" in record.getMessage() and record.pathname.endswith("sessions.rs") and record.lineno > 0
        fields = record.tensorhold  # type: ignore[attr-defined]
        assert fields["session"] and fields["session"] in record.getMessage()
        assert began <= record.created <= time.time()
        assert record.threadName != threading.current_thread().name
    assert not [record for record in kept.records if KEY in record.getMessage()]


def test_a_loggers_level_decides_which_events_come(
    start_cluster: Callable[..., Cluster], kept: Kept
) -> None:
    logging.getLogger("tensorhold").setLevel(logging.DEBUG)
    cluster = start_cluster(segment_mib=64)
    settings = {**cluster.settings(), "sweep_every": None, "pool_bytes": 16 << 20}
    options = {"user": "nobody", "password": PASSWORD}
    with pytest.raises(tensorhold.TensorholdError):
        tensorhold.open("run", **settings, timeout=3.0, etcd_options=options)
    with tensorhold.open("run", **settings) as store:
        store.put("a", {"x": b"bytes"}, groups=())
        revoke_all(cluster)
        kept.first(lambda record: record.levelno == logging.DEBUG and record.name == "tensorhold.index_etcd.session")
        logging.getLogger("tensorhold").setLevel(logging.CRITICAL)
        time.sleep(2 * _events.LOOK_EVERY_S)  # what is shown is that nothing comes
        before = len(kept.records)
        store.put("b", {"x": b"bytes"}, groups=())
        revoke_all(cluster)
        store.put("c", {"x": b"bytes"}, groups=())
        time.sleep(2 * _events.LOOK_EVERY_S)
        assert len(kept.records) == before
    assert not [record for record in kept.records if PASSWORD in record.getMessage()]


def test_a_handler_that_uses_the_store_waits_for_nobody(start_cluster: Callable[..., Cluster], kept: Kept) -> None:
    cluster = start_cluster(segment_mib=64)
    put: list[object] = []

    class Puts(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name == "tensorhold.features.sessions":
                put.append(store.put(f"record-{len(put)}", {"text": record.getMessage().encode()}, groups=()))

    with tensorhold.open("run", **cluster.settings(), sweep_every=0.2, pool_bytes=16 << 20) as store:
        handler = Puts()
        logging.getLogger("tensorhold").addHandler(handler)
        try:
            revoke_all(cluster)
            deadline = time.monotonic() + 20
            while not put and time.monotonic() < deadline:
                time.sleep(0.05)
        finally:
            logging.getLogger("tensorhold").removeHandler(handler)
        assert put and store.find(["record-0"])[0] is not None


def test_a_handler_that_raises_or_a_flood_keeps_no_event_from_the_next(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = (30, "tensorhold.test", "100% of it", [("a", "1"), ("b", "two")], 1000.25, "worker", "a.rs", 7)
    monkeypatch.setattr(_tensorhold, "next_events", lambda _: ([event, event], 3))
    seen: list[logging.LogRecord] = []
    told: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", told.append)

    def only_once(record: logging.LogRecord) -> bool:
        seen.append(record)
        if len(seen) == 1:
            raise ValueError("a filter of the program's")
        return True

    logging.getLogger("tensorhold.test").addFilter(only_once)
    try:
        _events.tell(0.0)
    finally:
        logging.getLogger("tensorhold.test").removeFilter(only_once)
    assert [record.getMessage() for record in kept.records] == [
        "100% of it (a=1, b=two)",
        "3 events were dropped: they came faster than the handlers processed them",
    ]
    assert (kept.records[0].created, kept.records[0].msecs) == (1000.25, 250.0)
    assert [str(one.exc_value) for one in told] == ["a filter of the program's"]


SCRIPT = """
    import json, logging, os, sys
    import tensorhold

    logging.basicConfig(level=logging.WARNING, format="%(process)d %(name)s %(levelname)s %(message)s", stream=sys.stdout)
    cluster = json.loads(sys.argv[1])
    sys.path.insert(0, sys.argv[2])
    from servers import Cluster
    from test_events import revoke_all

    class Told:
        etcd = cluster["etcd"]

    def lose_a_session():
        store = tensorhold.open("run", **cluster)
        store.put("a", {"x": b"bytes"}, groups=())
        revoke_all(Told)
        store.put("b", {"x": b"bytes"}, groups=())

    if sys.argv[3] == "fork":
        import tensorhold._events as events

        events.start()  # the parent's thread does not come along
        child = os.fork()
        if child:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    lose_a_session()
    # and the process ends, with its store open
"""


@pytest.mark.parametrize("how", ["plain", "fork"])
def test_the_last_events_come_before_the_process_ends(start_cluster: Callable[..., Cluster], how: str) -> None:
    cluster = start_cluster(segment_mib=64)
    settings = {**cluster.settings(), "pool_bytes": 16 << 20, "sweep_every": None}
    here = os.path.dirname(os.path.abspath(__file__))
    path = os.pathsep.join(part for part in sys.path if part)
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), json.dumps(settings), here, how],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert ended.returncode == 0, ended.stderr
    lines = [line for line in ended.stdout.splitlines() if "tensorhold.features.sessions WARNING" in line]
    assert lines, ended.stdout + ended.stderr


def test_no_thread_is_started_before_a_store_is_opened(open_store: OpenStore) -> None:
    code = "import tensorhold, threading; assert threading.active_count() == 1; tensorhold.open('x', lazy=True); "
    code += "assert threading.active_count() == 1"
    path = os.pathsep.join(part for part in sys.path if part)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env={**os.environ, "PYTHONPATH": path})


def test_a_program_that_disables_all_logging_opens_stores_and_hears_again_later(open_store: OpenStore, kept: Kept) -> None:
    logging.disable(sys.maxsize)
    try:
        open_store()
        _events.want_levels()
    finally:
        logging.disable(logging.NOTSET)
    assert any(thread.name == "tensorhold-events" for thread in threading.enumerate())
