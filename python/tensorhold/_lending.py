"""Why a process that puts samples lends no memory to the cluster, and what the user is told instead.

Objects in a process's own segment go with that process: at once with SIGKILL, and also when it closes in order.
A holder that is to end is drained before (``tensorhold drain``), which moves 16 objects a second: a program that ends
cannot wait for that. So samples lie in *holders*: processes that put nothing and keep running. A segment
size that a framework's launcher passes is therefore logged and not lent, and opening fails if the cluster has no memory
at all.
"""

from __future__ import annotations

from logging import Logger
from typing import TYPE_CHECKING

from tensorhold._settings import Settings
from tensorhold.errors import Capacity

if TYPE_CHECKING:
    from tensorhold._store import FeatureStore


def how_to_hold(settings: Settings) -> str:
    """The command that lends memory to this cluster."""
    return (
        "start a holder, a process that lends memory and keeps running, on each host with memory to spare: "
        f"mooncake_client --master_server_address={settings.master} --metadata_server={settings.metadata} "
        f"--protocol={settings.protocol} --host=NAME_OF_THAT_HOST --global_segment_size=32GB"
    )


def check_memory(store: FeatureStore, asked: int, setting: str, log: Logger) -> None:
    """Logs what happens to a segment that was ``asked`` for; raises if the cluster has no other memory for samples."""
    usage = store.health()["engine"]
    if usage is not None and usage["dram_capacity"] == 0:
        raise Capacity(
            f"the cluster has no memory: no holder has joined it, and this process lends none; {how_to_hold(store.settings)}",
            retry="safe",
            operation="python.open",
            facts={"master": store.settings.master},
        )
    if asked:
        log.warning(
            "%s=%d is not lent: samples in this process's memory would be lost with it. They go to the holders, "
            "which have %s bytes",
            setting,
            asked,
            "an unknown number of" if usage is None else usage["dram_capacity"],
        )
