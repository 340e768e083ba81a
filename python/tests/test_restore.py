"""The restore guard, on real servers."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import pytest

import tensorhold
from servers import Cluster


def test_a_store_goes_on_by_itself_after_the_restore_guard(
    start_cluster: Callable[..., Cluster], store_name: str
) -> None:
    cluster = start_cluster(segment_mib=64)
    settings = cluster.settings()
    with tensorhold.open(store_name, pool_bytes=64 << 20, sweep_every=None, **settings) as store:
        kept = store.put("kept", {"x": numpy.arange(1000)}, groups=["g"])
        (lease,) = store.take("g")
        before = store.health()
        assert before["index_cuts"] == 0 and before["index_refuses"] is None

        epoch = tensorhold.restore_guard(etcd=settings["etcd"])
        assert epoch != before["index_epoch"]
        with pytest.raises(tensorhold.Fenced):  # what was held before is not held any more
            lease.ack()
        store.put("new", {"x": numpy.zeros(10)}, groups=["h"])
        assert (store.get(kept, as_="numpy")["x"] == numpy.arange(1000)).all()
        after = store.health()
        assert (after["index_epoch"], after["index_cuts"], after["sessions_opened"]) == (epoch, 1, 2)


def test_a_guard_that_reaches_nobody_says_so() -> None:
    with pytest.raises(tensorhold.Unavailable):
        tensorhold.restore_guard(etcd="http://127.0.0.1:1", timeout=1.0)
