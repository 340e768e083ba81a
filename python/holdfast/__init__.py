"""Custody of tensors on a Mooncake Store cluster: kept while a consumer or reader needs them, then freed.

::

    import holdfast

    with holdfast.open("run-7", master="127.0.0.1:50051", etcd="http://127.0.0.1:2379") as store:
        store.put("sample-1", {"hidden": tensor}, groups=["trainers"])
        for lease in store.take("trainers", count=4):
            with lease:  # acknowledged at the end, handed back if this raises
                train(lease.get(as_="torch"))

:func:`open` returns a :class:`FeatureStore`; :mod:`holdfast.aio` has the same for asyncio. Errors are in
:mod:`holdfast.errors` and here. The work is done by a compiled module, ``holdfast._holdfast``. Bytes move once, between
the tensors' own memory and the cluster, and other Python threads run meanwhile.
"""

from __future__ import annotations

from holdfast import errors
from holdfast._holdfast import Announced, version
from holdfast._opening import open
from holdfast._partitions import PartitionedStore, open_partitions
from holdfast._restoring import restore_guard
from holdfast._secrets import Secret
from holdfast._settings import Settings
from holdfast._blocking import Writer
from holdfast._store import FeatureStore, Lease
from holdfast._tensor import Tensor
from holdfast._prefetch import Prefetch, Progress
from holdfast._values import (
    AdoptedTensor,
    Answered,
    DeadLetter,
    Found,
    GroupProgress,
    LiveSession,
    PutItem,
    Quarantined,
    SampleRef,
    Swept,
    TensorSpec,
)
from holdfast.errors import (
    Capacity,
    Conflict,
    Corrupt,
    DeadlineExceeded,
    Denied,
    Fenced,
    HoldfastError,
    Internal,
    Invalid,
    NotFound,
    PutsFailed,
    Timeout,
    Unavailable,
    Unsupported,
)

__all__ = [
    "AdoptedTensor",
    "Announced",
    "Answered",
    "Capacity",
    "Conflict",
    "Corrupt",
    "DeadLetter",
    "DeadlineExceeded",
    "Denied",
    "FeatureStore",
    "Fenced",
    "Found",
    "GroupProgress",
    "HoldfastError",
    "Internal",
    "Invalid",
    "Lease",
    "LiveSession",
    "NotFound",
    "PartitionedStore",
    "Prefetch",
    "Progress",
    "PutItem",
    "PutsFailed",
    "Quarantined",
    "SampleRef",
    "Secret",
    "Settings",
    "Swept",
    "Tensor",
    "TensorSpec",
    "Timeout",
    "Unavailable",
    "Unsupported",
    "Writer",
    "__version__",
    "errors",
    "open",
    "open_partitions",
    "restore_guard",
    "version",
]

__version__: str = version()
