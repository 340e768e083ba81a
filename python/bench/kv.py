"""Pages of a KV cache, set and got in batches of 64: Tensorhold's SGLang back end against SGLang's own Mooncake back end.

Both are the real classes, on one master and holder, with SGLang's own host pool (keys and values apart, page first),
through the calls that SGLang's controller makes: ``batch_set_v1`` and ``batch_get_v1``. They take turns, and the one
that goes first alternates. Ours checks the length and the checksum of every page, SGLang's checks neither. A ratio is
the median over the rounds of SGLang's time over ours: 1.0 is as fast, more is faster. Beside each ``x`` there are its
interval, rounds and processor time, as in ``features.py``. The pool of the cluster is touched first.

The last line is one JSON object. ``--try`` measures other settings of ours as well; ``--rounds`` is for profiling.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TextIO

import sglang_parts as parts
import torch

from paired import Ratio, Rounds, Spent, Stopwatch, median_of, ratio, take_turns
from servers import Cluster, running_cluster

BATCH: Final = 64
SEGMENT_MIB: Final = 768
WARM_UP: Final = 3
SIZES: Final = {"256k": 8, "1m": 32}
"""Sizes of a page, keys and values together, and the layers that make them."""
OURS: Final = "tensorhold"
THEIRS: Final = "sglang"
TRIES: Final[dict[str, dict[str, Any]]] = {
    "frames of 8 MiB": {"frames": 4, "frame_bytes": 8 << 20},
    "frames of 32 MiB": {"frame_bytes": 32 << 20},
    "sets through frames": {"direct_put_bytes": 0},
    "sets past frames": {"direct_put_bytes": 1},
    "1 lane": {"lanes": 1},
}


@dataclass
class Contender:
    """A back end, its pool, and how its pages are removed."""

    storage: Any
    pool: Any
    remove: Callable[[list[str]], None]
    evicted: bool = False

    def turn(self, watch: Stopwatch, turn: int) -> dict[str, Spent] | None:
        """Sets 64 pages, gets them into 64 others, and removes them."""
        keys = [uuid.uuid4().hex * 2 for _ in range(BATCH)]
        source, target = parts.indices(self.pool, range(BATCH)), parts.indices(self.pool, range(BATCH, 2 * BATCH))
        stored, setting = watch.time(lambda: self.storage.batch_set_v1(keys, source))
        loaded, getting = watch.time(lambda: self.storage.batch_get_v1(keys, target))
        counts = turn >= 0 and (all(loaded) or self.evicted)
        if counts:
            check(all(stored) and all(loaded), f"stored {sum(stored)} and loaded {sum(loaded)} of {BATCH} pages")
        else:
            # The pool was full when it was touched, so the master evicts once, whatever objects it finds at that
            # moment. That turn does not count.
            self.evicted |= not all(loaded)
            came = [at for at in range(BATCH) if loaded[at]]
            same = parts.page_bytes(self.pool, came) == parts.page_bytes(self.pool, [BATCH + at for at in came])
            check(same and len(came) > BATCH // 2, "other bytes came back, or nothing")
        self.remove(keys)
        return {"set": setting, "get": getting} if counts else None


def check(holds: bool, what: str) -> None:
    """Raises if a step failed: benchmarking something that does not work is worthless."""
    if not holds:
        raise RuntimeError(what)


def sglang(cluster: Cluster, pool: Any) -> Contender:
    """SGLang's own back end."""
    extra = {
        "master_server_address": cluster.master,
        "metadata_server": cluster.metadata,
        "global_segment_size": 0,
        "local_hostname": "127.0.0.1",
    }
    storage = parts.mooncake_store_class()(parts.storage_config(extra, enable_storage_metrics=False))
    storage.register_mem_pool_host(pool)

    def remove(keys: list[str]) -> None:
        tagged = storage._tag_keys(keys)
        storage.store.batch_remove([f"{key}_0_{part}" for key in tagged for part in "kv"], True)

    return Contender(storage, pool, remove)


def tensorhold(cluster: Cluster, pool: Any, **settings: Any) -> Contender:
    """Ours."""
    from tensorhold.sglang import TensorholdHiCacheStorage

    extra = {
        "interface_v1": 1,
        "master": cluster.master,
        "admin": cluster.admin,
        "metadata": cluster.metadata,
        "environment": {**cluster.client_env, "MC_LOG_LEVEL": "ERROR"},
        **settings,
    }
    storage = TensorholdHiCacheStorage(parts.storage_config(extra, enable_storage_metrics=False), {})
    storage.register_mem_pool_host(pool)

    def remove(keys: list[str]) -> None:
        storage.pages.remove(storage._pools["kv"].names.all(keys))

    return Contender(storage, pool, remove)


def touch(client: Any) -> None:
    """Fills the pool of the cluster and empties it: the first write to a page costs twice as much as any later one."""
    block = torch.ones(32 << 20, dtype=torch.uint8)
    client.register_buffer(block.data_ptr(), block.numel())
    from mooncake.store import ReplicateConfig

    pinned = ReplicateConfig()
    pinned.with_hard_pin = True
    keys: list[str] = []
    while client.put_from(f"touch/{len(keys)}", block.data_ptr(), block.numel(), pinned) == 0:
        keys.append(f"touch/{len(keys)}")
    check(len(keys) > 0 and not any(client.batch_remove(keys, True)), "the pool was not touched")
    client.unregister_buffer(block.data_ptr())


def ratios(size: str, rounds: Rounds, ours: str = OURS) -> dict[str, Ratio]:
    """Our throughput over SGLang's."""
    return {f"vs_sglang_{what}_{size}": ratio(rounds[THEIRS][what], rounds[ours][what]) for what in ("set", "get")}


def table(size: str, rounds: Rounds, out: TextIO) -> None:
    """Prints the results for people."""
    nbytes = BATCH * (256 << 10 if size == "256k" else 1 << 20)
    for name, steps in rounds.items():
        cells = []
        for (what, spent), told in zip(steps.items(), ratios(size, rounds, name).values(), strict=True):
            times, median = [one.wall for one in spent], median_of(spent).wall
            cells.append(
                f"{what} {median * 1e3:6.2f} ms ({min(times) * 1e3:.2f} to {max(times) * 1e3:.2f}) "
                f"{BATCH / median:6.0f} pages/s {nbytes / median / 1e9:5.2f} GB/s x{told}"
            )
        print(f"{size:>5} {name:<20} {'   '.join(cells)}", file=out, flush=True)


def figures(size: str, rounds: Rounds) -> dict[str, float]:
    """The medians, under the names that the goals use."""
    nbytes = BATCH * (256 << 10 if size == "256k" else 1 << 20)
    found: dict[str, float] = {}
    for what in ("set", "get"):
        for name in (OURS, THEIRS):
            times, median = [one.wall for one in rounds[name][what]], median_of(rounds[name][what])
            found[f"{name}_{what}_{size}_pages_s"] = BATCH / median.wall
            found[f"{name}_{what}_{size}_gb_s"] = nbytes / median.wall / 1e9
            found[f"{name}_{what}_{size}_spread"] = (max(times) - min(times)) / median.wall
            found[f"{name}_{what}_{size}_cpu_us"] = median.cpu / BATCH * 1e6
            found[f"{name}_{what}_{size}_cpu_servers_us"] = median.servers / BATCH * 1e6
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", action="store_true", help="nothing but one JSON object on standard output")
    parser.add_argument("--try", dest="tries", action="store_true", help="other settings of ours, too")
    parser.add_argument("--rounds", type=int, help="how many rounds")
    options = parser.parse_args()
    out = sys.stderr if options.json else sys.stdout
    rounds = options.rounds or (61 if options.quick else 301)
    found: dict[str, float] = {}
    told: dict[str, Ratio] = {}
    with running_cluster(segment_mib=SEGMENT_MIB, etcd=1, lease_ttl="5s") as cluster, parts.published():
        watch = Stopwatch(cluster.pids.values())
        os.environ.update({**cluster.client_env, "MC_LOG_LEVEL": "ERROR"})  # read when the engine is loaded
        for number, (size, layers) in enumerate(SIZES.items()):

            def pool(layers: int = layers) -> Any:
                return parts.mha_pool(layers=layers, heads=8, dim=64, page=16, pages=2 * BATCH)

            contenders = {THEIRS: sglang(cluster, pool()), OURS: tensorhold(cluster, pool())}
            for name, settings in TRIES.items() if options.tries else ():
                contenders[name] = tensorhold(cluster, pool(), **settings)
            if number == 0:
                touch(contenders[THEIRS].storage.store)
            turns = {name: partial(one.turn, watch) for name, one in contenders.items()}
            timed = take_turns(turns, rounds, WARM_UP)
            table(size, timed, out)
            found |= figures(size, timed)
            told |= ratios(size, timed)
            for name, one in contenders.items():
                if name != THEIRS:
                    one.storage.close()
    for what in ("set", "get"):
        told[f"vs_sglang_{what}"] = min((told[f"vs_sglang_{what}_{size}"] for size in SIZES), key=lambda one: one.value)
    for name, one_ratio in told.items():
        found |= one_ratio.figures(name)
    print(json.dumps({name: round(value, 3) for name, value in found.items()}), flush=True)
    sys.stderr.flush()
    os._exit(0)  # SGLang's client cannot be closed


if __name__ == "__main__":
    main()
