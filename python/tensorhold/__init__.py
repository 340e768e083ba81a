"""A transactional queue for tensors on Mooncake Store: kept until every group has acknowledged, then freed.

::

    import tensorhold

    with tensorhold.open("run-7", master="127.0.0.1:50051", etcd="http://127.0.0.1:2379") as store:
        store.put("sample-1", {"hidden": tensor}, groups=["trainers"])
        for lease in store.take("trainers", count=4):
            with lease:  # acknowledged at the end, handed back if this raises
                train(lease.get(as_="torch"))

:func:`open` returns a :class:`FeatureStore`; :mod:`tensorhold.aio` has the same for asyncio. Errors are in
:mod:`tensorhold.errors` and here. The work is done by a compiled module, ``tensorhold._tensorhold``. Bytes move once, between
the tensors' own memory and the cluster, and other Python threads run meanwhile.
"""

from __future__ import annotations

from tensorhold import errors
from tensorhold._tensorhold import Announced, version
from tensorhold._opening import open
from tensorhold._partitions import PartitionedStore, open_partitions
from tensorhold._restoring import restore_guard
from tensorhold._secrets import Secret
from tensorhold._settings import Settings
from tensorhold._blocking import Writer
from tensorhold._store import FeatureStore, Lease
from tensorhold._tensor import Tensor
from tensorhold._prefetch import Prefetch, Progress
from tensorhold._values import (
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
from tensorhold.errors import (
    Capacity,
    Conflict,
    Corrupt,
    DeadlineExceeded,
    Denied,
    Fenced,
    TensorholdError,
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
    "TensorholdError",
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
