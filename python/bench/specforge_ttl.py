"""The workload of ``cargo xtask prove ttl`` on SpecForge's own store: what happens when the engine protects objects
that were read for longer than the run.

Two producer and two consumer processes, eight samples of 4 MiB in flight. A producer puts and sends on the reference; a
consumer gets, releases, and lets the next sample in. A failed put is retried, as a patient user would, until the time
is up. The proof starts it and passes the cluster's addresses in ``TENSORHOLD_BESIDE``; it writes one JSON object to its
``result``.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

IN_FLIGHT: Final = 8
RETRY_S: Final = 0.05
PROCESSES: Final = 2
READY_WITHIN_S: Final = 120.0

Shared = tuple[Any, Any, Any, Any]
"""Room for samples in flight, their references, the counters, and the moment when all processes are ready."""


def features(task: dict[str, Any]) -> Any:
    """A separate client, as every process has."""
    os.environ.update({**dict(task["client_env"]), "MC_LOG_LEVEL": "FATAL"})
    from specforge.runtime.data_plane.mooncake_store import MooncakeFeatureStore

    setup = {
        "local_hostname": "127.0.0.1",
        "metadata_server": task["metadata"],
        "global_segment_size": 0,
        "local_buffer_size": 16 << 20,
        "protocol": "tcp",
        "rdma_devices": "",
        "master_server_addr": task["master"],
    }
    return MooncakeFeatureStore(store_id="proof", setup_kwargs=setup)


def produce(n: int, task: dict[str, Any], shared: Shared) -> None:
    import torch
    from specforge.runtime.data_plane.ref_serialization import ref_to_dict

    store, seen = features(task), Counter[str]()
    room, refs, told, ready = shared
    tensors = {"hidden_state": torch.ones(3 << 20, dtype=torch.uint8), "target": torch.ones(1 << 20, dtype=torch.uint8)}
    ready.wait(READY_WITHIN_S)
    ends = time.monotonic() + float(task["seconds"])
    for number in range(task["samples"] // PROCESSES):
        while time.monotonic() < ends and not room.acquire(timeout=0.2):
            pass
        while time.monotonic() < ends:
            try:
                ref = store.put(tensors, sample_id=f"{n}-{number}", metadata={"run_id": "proof"})
            except Exception as error:  # any exception counts as a failed put
                seen["put_failures"] += 1
                seen[f"error: {error}".split(" for ")[0]] += 1
                store.gc()
                time.sleep(RETRY_S)
            else:
                seen["puts"] += 1
                refs.put(ref_to_dict(ref))
                break
    told.put(dict(seen))


def consume(task: dict[str, Any], shared: Shared) -> None:
    from specforge.runtime.data_plane.ref_serialization import ref_from_dict

    store, seen = features(task), Counter[str]()
    room, refs, told, ready = shared
    ready.wait(READY_WITHIN_S)
    ends = time.monotonic() + float(task["seconds"])
    while time.monotonic() < ends and seen["gets"] < task["samples"]:
        try:
            ref = ref_from_dict(refs.get(timeout=0.2))
        except queue.Empty:
            continue
        try:
            _, handle = store.get(ref)
            seen["gets"] += 1
            store.release(handle)
        except Exception as error:
            seen["get_failures"] += 1
            seen[f"error: {error}".split(" for ")[0]] += 1
        store.gc()
        room.release()
    seen["not_freed"] = int(store.health()["release_pending"])
    told.put(dict(seen))


def main() -> None:
    task: dict[str, Any] = json.loads(os.environ["TENSORHOLD_BESIDE"])
    context = multiprocessing.get_context("spawn")
    told, ready = context.Queue(), context.Barrier(2 * PROCESSES + 1)
    shared = (context.Semaphore(IN_FLIGHT), context.Queue(), told, ready)
    workers = [context.Process(target=produce, args=(n, task, shared)) for n in range(PROCESSES)]
    workers += [context.Process(target=consume, args=(task, shared)) for _ in range(PROCESSES)]
    for worker in workers:
        worker.start()
    ready.wait(READY_WITHIN_S)
    begun = time.monotonic()
    total = Counter[str]()
    for _ in workers:
        total.update(told.get(timeout=float(task["seconds"]) + 60))
    errors = {name[len("error: ") :]: count for name, count in total.items() if name.startswith("error: ")}
    counts = {name: total[name] for name in ("puts", "gets", "put_failures", "get_failures", "not_freed")}
    result = {**counts, "errors": errors, "samples": task["samples"], "seconds": round(time.monotonic() - begun, 1)}
    Path(task["result"]).write_text(json.dumps(result))
    for worker in workers:
        worker.kill()  # the client cannot be closed
        worker.join()


if __name__ == "__main__":
    main()
    os._exit(0)
