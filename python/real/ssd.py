"""Pages that are on SSD only: a cluster for it, and how they come there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tensorhold.kv import PageStore
from real import faults, processes

OUT_WITHIN_S = 180.0

WAYS: list[tuple[str, dict[str, Any], str]] = [
    # Gets wait for what is on its way, and nothing of it expires: then every page is read ahead, also on a slow machine.
    ("read ahead", {"prefetch": {"wait_for_prefetch": 10.0, "begin_within": 60.0, "within": 60.0, "keep": 60.0}}, "local"),
    # Nothing is read ahead, and the store looks where pages are all the same.
    ("not read ahead", {"prefetch_on_exist": False, "prefetch": {"count_sources": True}}, "ssd"),
]
"""Ways to read pages from SSD: a name, options of the tier, and what it then counts as their source."""


@contextmanager
def cluster() -> Iterator[Any]:
    """Two holders with an SSD folder each, and so little DRAM that pages can be crowded out of it."""
    from servers import running_cluster

    with running_cluster(holders=2, segment_mib=64, ssd=True, lease_ttl="1s") as running:
        yield running


def crowded_out(cluster: Any) -> int:
    """Crowds every page that the cluster has out of DRAM. Returns how many there are."""
    from ssd_parts import crowd_out

    keys = [key for key in faults.keys(cluster) if key.startswith("kv/")]
    with PageStore(
        master=cluster.master,
        admin=cluster.admin,
        metadata=cluster.metadata,
        environment={**cluster.client_env, "MC_LOG_LEVEL": "ERROR"},
    ) as pages:
        cold = crowd_out(pages, keys, OUT_WITHIN_S)
    if len(cold) < len(keys):
        raise processes.Stuck(f"{len(keys) - len(cold)} of {len(keys)} pages are still in DRAM, or gone")
    return len(keys)
