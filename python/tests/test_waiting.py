"""Calls that take long: other threads run, Ctrl-C works, deadlines hold."""

from __future__ import annotations

import _thread
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

import tensorhold
from conftest import OpenStore
from tensorhold import FeatureStore
from servers import Cluster

MIB = 1 << 20


@contextmanager
def counting() -> Iterator[list[float]]:
    """Notes the longest pause between two steps of another Python thread."""
    pauses: list[float] = []
    done = threading.Event()

    def count() -> None:
        last = time.monotonic()
        while not done.wait(0.001):
            now = time.monotonic()
            pauses.append(now - last)
            last = now

    counter = threading.Thread(target=count)
    counter.start()
    try:
        yield pauses
    finally:
        done.set()
        counter.join()


def test_other_threads_run_while_128_mib_move(open_store: OpenStore) -> None:
    store = open_store(warm_bytes=128 * MIB)
    data = torch.randint(0, 255, (128 * MIB,), dtype=torch.uint8)
    mine = torch.empty_like(data)
    with counting() as pauses:
        begun = time.monotonic()
        ref = store.put("large", {"x": data}, groups=(), timeout=60)
        got = store.get(ref, timeout=60)
        store.get(ref, into={"x": mine}, timeout=60)
        took = time.monotonic() - begun
    assert torch.equal(got["x"].torch(), data) and torch.equal(mine, data)
    assert len(pauses) > 5 and max(pauses) < took / 2, f"{len(pauses)} steps in {took:.2f} s"


@contextmanager
def interrupted(after: float) -> Iterator[None]:
    """Sends Ctrl-C to this process in a while."""
    # A process that was started in the background ignores it, and so does its Python, unless told otherwise.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(after, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_a_long_wait_and_the_store_works_on(store: FeatureStore) -> None:
    begun = time.monotonic()
    with interrupted(0.3), pytest.raises(KeyboardInterrupt):
        store.take("nobody", timeout=60)
    assert time.monotonic() - begun < 1.3
    ref = store.put("after", {"x": b"works"}, groups=["nobody"])
    assert store.get(ref)["x"].tobytes() == b"works"
    # A sample that the abandoned call gets is released, so that the next caller gets it.
    assert [lease.ref for lease in store.take("nobody", timeout=20)] == [ref]


def test_ctrl_c_during_a_put_leaves_nothing_half_done(store: FeatureStore) -> None:
    data = torch.randint(0, 255, (64 * MIB,), dtype=torch.uint8)
    for _ in range(3):
        try:
            with interrupted(0.02):
                store.put("cut", {"x": data}, groups=())
                time.sleep(0.05)
        except KeyboardInterrupt:
            pass
    ref = store.put("cut", {"x": data}, groups=(), timeout=60)
    assert torch.equal(store.get(ref, as_="torch")["x"], data)


def test_a_dead_master_is_told_at_once(cluster: Cluster) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{closed.getsockname()[1]}"
    begun = time.monotonic()
    with pytest.raises(tensorhold.Unavailable, match="does not listen") as caught:
        tensorhold.open("s", **{**cluster.settings(), "master": dead}, timeout=3)
    assert time.monotonic() - begun < 1
    assert caught.value.facts["master"] == dead and isinstance(caught.value, ConnectionError)


def test_an_etcd_that_does_not_answer_costs_the_timeout_and_no_more(cluster: Cluster) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        settings = {**cluster.settings(), "etcd": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        begun = time.monotonic()
        with pytest.raises(tensorhold.Unavailable):
            tensorhold.open("s", **settings, timeout=2)
    assert time.monotonic() - begun < 3


def test_a_stopped_master_costs_the_timeout_and_no_more(start_cluster: Callable[..., Cluster]) -> None:
    own = start_cluster(segment_mib=16)
    with tensorhold.open("s", **own.settings(), sweep_every=None, timeout=10) as store:
        ref = store.put("a", {"x": b"here"}, groups=())
        os.kill(own.pids["master-0"], signal.SIGSTOP)
        try:
            begun = time.monotonic()
            with pytest.raises(TimeoutError) as caught:
                store.put("b", {"x": b"late"}, groups=(), timeout=1.5)
            assert time.monotonic() - begun < 2.5
            assert isinstance(caught.value, tensorhold.Unavailable)
        finally:
            os.kill(own.pids["master-0"], signal.SIGCONT)
        assert store.get(ref)["x"].tobytes() == b"here"


def test_a_drain_that_cannot_end_is_a_timeout_error(start_cluster: Callable[..., Cluster]) -> None:
    own = start_cluster(segment_mib=16)
    with tensorhold.open("s", **own.settings(), sweep_every=None, timeout=10) as store:
        store.put("a", {"x": b"here"}, groups=())
        os.kill(own.pids["master-0"], signal.SIGSTOP)
        try:
            store.abort("a")
            with pytest.raises(TimeoutError):
                store.drain(timeout=0.5)
        finally:
            os.kill(own.pids["master-0"], signal.SIGCONT)
        store.drain(timeout=30)


def test_a_timeout_is_a_time(store: FeatureStore) -> None:
    for odd in (-1.0, float("nan")):
        with pytest.raises(tensorhold.Invalid, match="seconds"):
            store.health(timeout=odd)
    assert store.take("g", timeout=0.05) == []
    assert store.health(timeout=float("inf"))["session"] is not None


def test_a_closed_store_says_so_and_closes_again(open_store: OpenStore) -> None:
    store = open_store()
    ref = store.put("a", {"x": bytes(100)}, groups=())
    got = store.get(ref)["x"]
    view = got.torch()
    store.close()
    store.close()
    assert store.closed and "closed" in repr(store)
    with pytest.raises(tensorhold.Unavailable, match="closed"):
        store.put("a", {"x": b"1"}, groups=())
    assert view.sum() == 0, "views live on"
    del got, view


def test_threads_share_a_store(store: FeatureStore) -> None:
    errors: list[BaseException] = []

    def work(worker: int) -> None:
        try:
            for step in range(5):
                ref = store.put(f"{worker}/{step}", {"x": torch.full((1000,), worker)}, groups=())
                assert store.get(ref, as_="torch")["x"][999] == worker
        except BaseException as error:  # told below, by the main thread
            errors.append(error)
            _thread.interrupt_main()

    workers = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not errors
