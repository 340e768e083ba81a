"""The page store, the planner and the tier from Python, on a real master."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tensorhold import errors, kv
from servers import Cluster, running_cluster

PAGE = 64 << 10


def settings(cluster: Cluster) -> dict[str, Any]:
    found = cluster.settings()
    del found["etcd"]
    return found


@pytest.fixture(params=[0, 4], ids=["from where they lie", "through frames"])
def store(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[kv.PageStore]:
    with kv.PageStore(**settings(cluster), frames=request.param) as opened:
        yield opened


def random_pages(count: int) -> Any:
    return np.frombuffer(os.urandom(count * PAGE), dtype=np.uint8).reshape(count, PAGE).copy()


def names(count: int) -> list[str]:
    return [f"kv/test/{uuid.uuid4().hex}" for _ in range(count)]


def places(memory: Any, which: range) -> tuple[list[int], list[int]]:
    base = memory.__array_interface__["data"][0]
    return [base + at * PAGE for at in which], [PAGE] * len(which)


def test_pages_come_back_exactly(store: kv.PageStore) -> None:
    source, target, keys = random_pages(4), np.zeros((4, PAGE), dtype=np.uint8), names(4)
    store.register(source)
    store.register(target)
    assert store.put(keys[:3], *places(source, range(3))).pages == ["stored"] * 3
    assert store.prefix_hits(keys, nbytes=PAGE) == 3
    assert store.prefix_hits(keys, nbytes=PAGE - 1) == 0
    hints = store.exists(keys)
    assert hints[0] == kv.Hint(PAGE, True) and hints[3] is None
    report = store.get(keys, *places(target, range(4)))
    assert report.pages == ["loaded", "loaded", "loaded", "miss"]
    assert report.prefix == 3 and report.settling.settled
    assert (target[:3] == source[:3]).all()
    assert store.remove(keys) == [True] * 4
    assert store.prefix_hits(keys) == 0
    assert store.stats()["pages_loaded"] == 3


def test_memory_that_was_not_registered_is_refused(store: kv.PageStore) -> None:
    memory = random_pages(2)
    run = store.register(memory[:1])
    with pytest.raises(errors.Invalid, match="register"):
        store.put(names(1), *places(memory, range(1, 2)))
    with pytest.raises(errors.Conflict):
        store.register(memory)
    assert store.unregister(run) and not store.unregister(run)
    with pytest.raises(errors.Invalid):
        store.put(names(1), *places(memory, range(1)))


def test_a_closed_store_says_so(cluster: Cluster) -> None:
    store = kv.PageStore(**settings(cluster))
    store.close()
    store.close()
    with pytest.raises(errors.Unavailable, match="closed"):
        store.exists(names(1))


def test_a_master_that_is_not_there_is_told_at_once() -> None:
    with pytest.raises(errors.Unavailable, match="master"):
        kv.PageStore(master="127.0.0.1:1", timeout=5)


def test_without_frames_a_late_get_says_when_its_memory_is_free() -> None:
    with running_cluster(segment_mib=64) as cluster, kv.PageStore(**settings(cluster), frames=0) as store:
        memory, keys = random_pages(2), names(2)
        store.register(memory)
        assert all(store.put(keys, *places(memory, range(2))).stored)
        os.kill(cluster.pids["holder-0"], signal.SIGSTOP)
        try:
            report = store.get(keys, *places(memory, range(2)), timeout=1.0)
            assert report.pages == ["failed"] * 2 and len(report.errors) == 2
            assert not report.settling.settled and not report.settling.wait(0.05)
        finally:
            os.kill(cluster.pids["holder-0"], signal.SIGCONT)
        assert report.settling.wait(60)


def test_what_counts_as_written_dies_with_its_holder() -> None:
    """As docs/kv.md says: until the master drops a dead holder, its pages are found and count as stored; then they are
    gone, and can be stored anew."""
    with running_cluster(holders=2, segment_mib=64, master_flags=["--client_ttl=10"]) as cluster:
        with kv.PageStore(**settings(cluster)) as store:
            memory, keys = random_pages(16), names(16)
            store.register(memory)
            every = places(memory, range(16))
            assert all(store.put(keys, *every).stored)
            os.kill(cluster.pids["holder-0"], signal.SIGKILL)
            again = store.put(keys, *every)
            loaded = store.get(keys, *every).loaded
            assert all(again.stored), "the master still lists them, and so they count as stored"
            dead = {key for key, came in zip(keys, loaded, strict=True) if not came}
            assert 0 < len(dead) < 16, "those of the other holder are there"

            deadline = time.monotonic() + 60
            while (hints := store.exists(keys)).count(None) < len(dead):
                assert time.monotonic() < deadline, "the master drops the dead holder"
                time.sleep(0.1)
            assert {key for key, hint in zip(keys, hints, strict=True) if hint is None} == dead
            assert all(store.put(keys, *every).stored)
            before = memory.copy()
            memory[:] = 0
            assert all(store.get(keys, *every).loaded) and (memory == before).all(), "now they are on the other holder"


class Server:
    """A serving engine's loop over a planner and a tier; its device is a dictionary. Never blocks on the store."""

    def __init__(self, cluster: Cluster, namespace: kv.Namespace, contents: dict[bytes, bytes]) -> None:
        self.namespace, self.contents = namespace, contents
        self.host = np.zeros((32, PAGE), dtype=np.uint8)
        self.device: dict[int, bytes] = {}
        self.store = kv.PageStore(**settings(cluster))
        parts = [kv.Part(self.store.register(self.host).address, PAGE, PAGE)]
        self.planner = kv.Planner(namespace, host_pages=32, device_pages=32)
        self.tier = kv.Tier(self.store, namespace, host_pages=32, parts=parts)
        self.tick = self.requests = 0

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.tier.close()
        self.store.close()

    def copy(self, operation: kv.Operation) -> None:
        for page in operation.pages:
            assert page.host is not None and page.device is not None
            if operation.kind == "load-back":
                self.device[page.device] = self.host[page.host].tobytes()
                assert self.device[page.device] == self.contents[page.key]
            else:
                self.host[page.host] = np.frombuffer(self.device[page.device], dtype=np.uint8)
        done = kv.Completion(operation.id, len(operation.pages))
        assert self.planner.on_event(kv.Completed([done]))

    def compute(self, grant: kv.Grant, keys: kv.PageKeys) -> None:
        for at, (place, key) in enumerate(zip(grant.pages, keys.keys(), strict=False)):
            if at >= grant.cached:
                self.contents.setdefault(key, os.urandom(PAGE))
            self.device[place] = self.contents[key]
        self.planner.on_event(kv.PrefillDone(grant.ticket))
        self.planner.on_event(kv.Finish(grant.ticket))

    def serve(self, prompt: list[int]) -> int:
        """Serves a prompt until nothing is on its way any more. Returns how many of its pages were cached."""
        keys = kv.PageKeys(self.namespace, prompt)
        self.requests += 1
        ticket = self.planner.submit(self.requests, keys)
        assert self.planner.state(ticket) == "Submitted"
        cached, deadline = -1, time.monotonic() + 30
        while self.planner.pending:
            assert time.monotonic() < deadline
            self.tick += 1
            plan = self.planner.step(self.tick)
            for operation in plan.operations:
                if operation.kind in ("load-back", "write-back"):
                    self.copy(operation)
                else:
                    assert self.tier.submit(operation, timeout=10) is None
            for grant in plan.grants:
                cached = grant.cached
                self.compute(grant, keys)
            for event in self.tier.wait(0.01):
                if isinstance(event, kv.Completion):
                    self.planner.on_event(kv.Completed([event]))
        assert self.tier.stats()["open"] == 0
        for pool in self.planner.pools():
            assert pool.owned == 0 and sum(pool) == 32
        return cached


@pytest.fixture
def namespace() -> kv.Namespace:
    return kv.Namespace(model=uuid.uuid4().hex, dtype="bf16", layout="whole", page_tokens=4)


def test_an_event_loop_drives_planner_and_tier(cluster: Cluster, namespace: kv.Namespace) -> None:
    """A prompt is computed, written back and backed up; a second server has it prefetched, without ever blocking."""
    tokens = list(range(41))
    contents: dict[bytes, bytes] = {}
    with Server(cluster, namespace, contents) as first:
        assert first.serve(tokens) == 0
    with Server(cluster, namespace, contents) as second:
        assert second.serve(tokens) == 10, "all full pages came from the other server"


def test_pages_that_the_store_has_lost_are_backed_up_again(cluster: Cluster, namespace: kv.Namespace) -> None:
    tokens = list(range(41))
    contents: dict[bytes, bytes] = {}
    pages = [namespace.object_name(key) for key in kv.PageKeys(namespace, tokens).keys()[:10]]
    with Server(cluster, namespace, contents) as server, kv.PageStore(**settings(cluster)) as other:
        assert server.serve(tokens) == 0
        assert other.prefix_hits(pages, nbytes=PAGE) == 10
        # The store evicts what it was not asked for; the server has it in memory, and does not ask.
        assert other.remove(pages[2:7]) == [True] * 5
        stored = server.store.stats()["pages_stored"]
        assert server.serve(tokens) == 10
        assert other.prefix_hits(pages, nbytes=PAGE) == 10
        assert server.store.stats()["pages_stored"] == stored + 5, "what the store still had was not put again"
    with Server(cluster, namespace, contents) as second:
        assert second.serve(tokens) == 10


def test_device_copies_are_the_callers(cluster: Cluster) -> None:
    namespace = kv.Namespace(model="m", page_tokens=4)
    with kv.PageStore(**settings(cluster)) as store:
        run = store.register(random_pages(1))
        with kv.Tier(store, namespace, host_pages=1, parts=[kv.Part(run.address, PAGE, PAGE)]) as tier:
            copy = kv.Operation(1, "load-back", [kv.PageAt(0, namespace.root(), 0, 0)])
            with pytest.raises(errors.Unsupported, match="device"):
                tier.submit(copy, timeout=1)
            assert tier.cancel(7) == "nothing"
            assert tier.poll() == []
