"""Memory that an engine call may still touch: a get whose holder is stopped ends at its deadline, its transfer does not."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import pytest
import torch

import tensorhold
from tensorhold import FeatureStore, SampleRef
from servers import Cluster
from waiting import until

MIB = 1 << 20
BYTES = 8 * MIB
WHOLE_S = 60.0
"""Enough for anything on a machine that does other things too."""
LATE_S = 6.0
"""How long a transfer that was held up is given to do harm."""

StartCluster = Callable[..., Cluster]


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that neither answers nor dies."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def late_get(store: FeatureStore, ref: SampleRef, into: Any) -> None:
    """A get that ends at its deadline; its transfer is still under way."""
    with pytest.raises(tensorhold.TensorholdError):
        store.get(ref, into={"x": into}, timeout=1)


def slow_and_fast(store: FeatureStore, cluster: Cluster, refs: list[SampleRef]) -> tuple[SampleRef, SampleRef]:
    """A sample on the first holder, which is stopped, and one that is not."""
    slow: SampleRef | None = None
    fast: SampleRef | None = None
    for ref in refs:
        try:
            store.get(ref, into={"x": store.empty((BYTES,), "uint8")}, timeout=2)
            fast = ref
        except tensorhold.TensorholdError:
            slow = ref
        if slow is not None and fast is not None:
            return slow, fast
    pytest.fail("all samples lie on one holder")


@pytest.mark.parametrize("where", ["pool", "lent", "view"])
def test_a_late_transfer_never_overwrites_a_get_that_was_verified(start_cluster: StartCluster, where: str) -> None:
    cluster = start_cluster(segment_mib=512, holders=2)
    with tensorhold.open("late", **{"pool_bytes": 512 * MIB, **cluster.settings()}) as store:
        refs = [store.put(f"s{n}", {"x": torch.full((BYTES,), n, dtype=torch.uint8)}, groups=()) for n in range(1, 9)]
        buffer = store.empty((BYTES,), "uint8")
        mine: Any = {"pool": buffer, "lent": torch.empty(BYTES, dtype=torch.uint8), "view": buffer.torch()}[where]
        seen = mine.torch() if isinstance(mine, tensorhold.Tensor) else mine
        assert isinstance(seen, torch.Tensor)
        with stopped(cluster.pids["holder-0"]):
            slow, fast = slow_and_fast(store, cluster, refs)
            late_get(store, slow, mine)
            verified = False
            try:
                store.get(fast, into={"x": mine}, timeout=3)
                verified = True
            except tensorhold.Unavailable as refused:
                assert "in use by an earlier transfer" in str(refused), refused
        want = int(fast.sample[1:])
        if not verified:
            store.get(fast, into={"x": mine}, timeout=WHOLE_S)
        assert bool((seen == want).all())
        deadline = time.monotonic() + LATE_S
        while time.monotonic() < deadline:
            assert bool((seen == want).all()), f"a late transfer wrote over {int((seen != want).sum())} bytes"
            time.sleep(0.2)


def test_memory_that_a_late_get_may_still_write_cannot_be_looked_at(start_cluster: StartCluster) -> None:
    cluster = start_cluster(segment_mib=256)
    with tensorhold.open("looked", **{"pool_bytes": 64 * MIB, **cluster.settings()}) as store:
        ref = store.put("s", {"x": torch.full((BYTES,), 7, dtype=torch.uint8)}, groups=())
        tensor = store.empty((BYTES,), "uint8")
        looks: list[Callable[[], object]] = [
            tensor.torch,
            tensor.numpy,
            tensor.memoryview,
            tensor.tobytes,
            tensor.__dlpack__,
            lambda: numpy.asarray(tensor),
            lambda: torch.utils.dlpack.from_dlpack(tensor),
        ]
        with stopped(cluster.pids["holder-0"]):
            late_get(store, ref, tensor)
            for look in looks:
                with pytest.raises(tensorhold.Unavailable, match="in use by an earlier transfer"):
                    look()
            small = store.empty((1000,), "uint8")
            small.torch().fill_(3)  # memory beside it is free
        until("the late transfer ends", lambda: _looks(tensor), WHOLE_S)
        for look in looks:
            look()


def _looks(tensor: tensorhold.Tensor) -> bool:
    try:
        tensor.torch()
    except tensorhold.Unavailable:
        return False
    return True


def test_memory_that_a_late_get_may_still_write_is_not_put(start_cluster: StartCluster) -> None:
    cluster = start_cluster(segment_mib=256)
    with tensorhold.open("put", **{"pool_bytes": 64 * MIB, **cluster.settings()}) as store:
        for nbytes in (1000, BYTES):  # a small tensor is copied first, a large one is put from where it lies
            ref = store.put(f"s{nbytes}", {"x": torch.full((nbytes,), 7, dtype=torch.uint8)}, groups=())
            mine = store.empty((nbytes,), "uint8").torch()
            with stopped(cluster.pids["holder-0"]):
                late_get(store, ref, mine)
                with pytest.raises(tensorhold.Unavailable, match="in use by an earlier transfer"):
                    store.put("again", {"x": mine}, groups=(), timeout=1)
            assert store.put("again", {"x": mine}, groups=(), timeout=WHOLE_S)
            assert bool((store.get("again", as_="torch")["x"] == mine).all())


@pytest.mark.parametrize("kind", ["data", "set", "share", "resize", "del", "numpy", "unchecked", "bytearray"])
def test_memory_that_is_given_back_after_a_get_that_failed_stays_its_next_owners(
    start_cluster: StartCluster, kind: str
) -> None:
    cluster = start_cluster(segment_mib=512)
    nbytes = 96 * MIB
    with tensorhold.open("owner", **{"pool_bytes": 256 * MIB, **cluster.settings()}) as store:
        ref = store.put("s", {"x": torch.full((nbytes,), 7, dtype=torch.uint8)}, groups=())
        tensor = torch.zeros(nbytes, dtype=torch.uint8)
        array = numpy.zeros(nbytes, dtype=numpy.uint8)
        plain = bytearray(nbytes)
        mine: Any = {"numpy": array, "unchecked": array, "bytearray": plain}.get(kind, tensor)
        store.get(ref, into={"x": mine}, timeout=WHOLE_S)
        with stopped(cluster.pids["holder-0"]):
            late_get(store, ref, mine)
            # What programs do to give memory back; torch.multiprocessing shares what it sends.
            if kind == "share":
                tensor.share_memory_()  # type: ignore[no-untyped-call]
            elif kind == "resize":
                tensor.untyped_storage().resize_(0)
            elif kind == "data":
                tensor.data = torch.empty(0, dtype=torch.uint8)
            elif kind == "set":
                tensor.set_(torch.empty(0, dtype=torch.uint8).untyped_storage())
            elif kind == "unchecked":
                array.resize((0,), refcheck=False)
            elif kind == "bytearray":
                plain.clear()
            if kind != "share":
                del tensor
            del array, plain, mine
            others = [torch.zeros(nbytes, dtype=torch.uint8) for _ in range(2)]
            others += [torch.from_numpy(numpy.zeros(nbytes, dtype=numpy.uint8))]
        deadline = time.monotonic() + LATE_S
        while time.monotonic() < deadline:
            spoiled = sum(int(torch.count_nonzero(other)) for other in others)
            assert spoiled == 0, f"{spoiled} bytes of unrelated tensors were overwritten"
            time.sleep(0.5)
        until("the engine lets go", lambda: store.health()["registrations"]["regions"] <= 2, WHOLE_S)
