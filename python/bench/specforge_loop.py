"""SpecForge's own loop with small samples: its Mooncake store and ours in its place, the same calls, taking turns.

At 67 KB the bytes cost next to nothing, and what is left is what a call costs. Two loops, as SpecForge runs them:

| loop | timed |
|---|---|
| of its launchers (``retain_on_release``): all samples of a step are aborted, and drained together | put, get, abort |
| of a consumer that uses samples up | get_leased, release |

Objects that SpecForge's store could not remove, because the engine still has them under its read lease, are removed
after each round, untimed.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import torch
from specforge.runtime.data_plane.feature_store import FeatureStore
from specforge.runtime.data_plane.mooncake_store import MooncakeFeatureStore

from contenders import TIMEOUT_S, Sample, check, same, setup_arguments
from tensorhold.specforge import TensorholdFeatureStore
from paired import Ratio, Rounds, Spent, Stopwatch, ratio, take_turns
from servers import Cluster

STEP: Final = 8
"""The samples of one training step."""
WARM_UP: Final = 3
DRAINED_NEXT: Final = "optimizer-boundary-durable-ack"
"""The reason that SpecForge gives for the aborts after a step."""
POOL_BYTES: Final = 64 << 20
FIGURES: Final = {
    **dict.fromkeys(("put", "get", "abort"), "retained"),
    **dict.fromkeys(("get_leased", "release"), "used up"),
}
"""The figures, and the loop in which each is measured."""


def small_sample(tokens: int = 64, hidden: int = 128) -> Sample:
    """What a small target gives for 64 tokens: 67 KB."""
    return {
        "input_ids": torch.arange(tokens),
        "loss_mask": torch.ones(tokens, dtype=torch.int64),
        "hidden_state": torch.randn(1, tokens, hidden).to(torch.bfloat16),
        "aux_hidden_state": torch.randn(1, tokens, 3 * hidden).to(torch.bfloat16),
    }


def one_round(store: FeatureStore, watch: Stopwatch, sample: Sample, turn: int) -> dict[str, Spent]:
    """Passes the samples of one step through a store, one after the other."""
    names = [f"loop-{turn}-{n}" for n in range(STEP)]
    refs, put = watch.time(lambda: [store.put(sample, sample_id=name, metadata={"run_id": "bench"}) for name in names])
    got, get = watch.time(lambda: [store.get(ref) for ref in refs])
    check(turn >= 0 or all(same(tensors, sample) for tensors, _ in got), "wrong bytes came back")
    handles = [handle for _, handle in got]
    del got

    def release() -> None:
        for handle in handles:
            store.release(handle)

    def abort() -> None:
        for name in names:
            store.abort(name, reason=DRAINED_NEXT)
        store.drain_sample_removals(names)

    _, released = watch.time(release)
    if store.retain_on_release:
        return {"put": put, "get": get, "abort": watch.time(abort)[1]}
    store.drain_pending_removals()
    return {"put": put, "get_leased": get, "release": released}


def measure(cluster: Cluster, rounds: int) -> dict[str, Rounds]:
    """Both loops, each with stores of its own."""
    watch, sample = Stopwatch(cluster.pids.values()), small_sample()
    found = {}
    for loop in dict.fromkeys(FIGURES.values()):
        name, retained = f"loop-{loop.replace(' ', '-')}", loop == "retained"
        theirs = MooncakeFeatureStore(
            store_id=f"own-{name}", setup_kwargs=setup_arguments(cluster), retain_on_release=retained
        )
        settings: dict[str, Any] = {**cluster.settings(), "pool_bytes": POOL_BYTES, "timeout": TIMEOUT_S}
        with TensorholdFeatureStore(store_id=name, retain_on_release=retained, **settings) as ours:
            sides = {"specforge": theirs, "tensorhold": ours}
            turns = {side: partial(one_round, store, watch, sample) for side, store in sides.items()}
            found[loop] = take_turns(turns, rounds, WARM_UP)
    return found


def ratios(found: dict[str, Rounds]) -> dict[str, Ratio]:
    """Our time over that of SpecForge's own store: 1.0 is as fast, less is faster."""
    return {
        f"specforge_loop_{step}": ratio(found[loop]["tensorhold"][step], found[loop]["specforge"][step])
        for step, loop in FIGURES.items()
    }
