"""The KV tier: an L3 for the KV pages of serving engines, on a Mooncake cluster.

A page is content-addressed and expendable: equal names mean equal bytes, a miss means recomputation, and a page whose
length or checksum is not exactly right is a miss. There are three layers, each usable by itself:

* :class:`PageStore` - pages by name, in and out of registered memory. Its calls block.
* :class:`Tier` - carries out operations on its own threads, without ever blocking the thread that submits them.
* :class:`Planner` - decides from events which pages move where; no I/O.

``tensorhold.sglang`` and ``tensorhold.vllm`` are back ends for those engines, built on the page store. See ``docs/kv.md``.
"""

from __future__ import annotations

from tensorhold._prefetch import Prefetch, PrefetchOutcome, Progress
from tensorhold.kv._pages import GetReport, Hint, Memory, PageStore, PutReport, Settling
from tensorhold.kv._plan import (
    Abort,
    Appended,
    Clear,
    Completed,
    Completion,
    Event,
    Finish,
    Grant,
    Namespace,
    NewWeights,
    Operation,
    PageAt,
    PageKeys,
    Plan,
    Planner,
    Pool,
    PrefillDone,
    Rank,
    Reserve,
    Resume,
    Retract,
    Ticket,
)
from tensorhold.kv._tier import Part, Tier, TimedOut

__all__ = [
    "Abort",
    "Appended",
    "Clear",
    "Completed",
    "Completion",
    "Event",
    "Finish",
    "GetReport",
    "Grant",
    "Hint",
    "Memory",
    "Namespace",
    "NewWeights",
    "Operation",
    "PageAt",
    "PageKeys",
    "PageStore",
    "Part",
    "Plan",
    "Planner",
    "Pool",
    "Prefetch",
    "PrefetchOutcome",
    "PrefillDone",
    "Progress",
    "PutReport",
    "Rank",
    "Reserve",
    "Resume",
    "Retract",
    "Settling",
    "Ticket",
    "Tier",
    "TimedOut",
]
