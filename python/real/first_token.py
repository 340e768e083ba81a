"""Time to the first token, side by side: ``python -m real.first_token [--json]``.

Three SGLang servers at once, asked in turns, each flushed before: one computes the prompt, one loads it from Holdfast, one
from SGLang's own Mooncake back end. Two cores for three servers: what is measured is the way of a request through scheduler,
lookup and copies, of a model whose computing costs next to nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from real import model, processes, sglang

ROUNDS = 15
TOKENS = 1500
STORED_WITHIN_S = 60.0


def own(cluster: Any) -> dict[str, Any]:
    """The options of SGLang's own Mooncake back end."""
    return {
        "master_server_address": cluster.master,
        "metadata_server": cluster.metadata,
        "local_hostname": "127.0.0.1",
        "protocol": "tcp",
        "device_name": "",
        "global_segment_size": 0,
        "check_server": False,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--json", action="store_true", help="only the last line, as JSON")
    quiet = arguments.parse_args().json
    sys.path.insert(0, str(processes.HERE.parent / "tests"))
    from servers import running_cluster

    prompt = [(7 * at + at * at // 11) % 900 + 5 for at in range(TOKENS)]
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(running_cluster(holders=2, segment_mib=256))
        folder = model.make(scratch / "llama")
        holdfast = sglang.backend(cluster, uuid.uuid4().hex[:8])
        up = {
            "computed": stack.enter_context(sglang.running(folder, None, scratch)),
            "holdfast": stack.enter_context(sglang.running(folder, holdfast, scratch)),
            "own": stack.enter_context(sglang.running(folder, own(cluster), scratch, storage="mooncake")),
        }
        for name, server in up.items():
            deadline = time.monotonic() + STORED_WITHIN_S
            while name != "computed":  # until what was written through is found
                server.flush()
                _, hits = server.first_token(prompt)
                if hits >= (TOKENS - 1) // sglang.PAGE * sglang.PAGE:
                    break
                if time.monotonic() > deadline:
                    raise processes.Stuck(f"{name}: {hits} of {TOKENS} tokens are found:\n{processes.end_of(server.log)}")
        took: dict[str, list[float]] = {name: [] for name in up}
        for turn in range(ROUNDS):
            for name, server in up.items():
                server.flush()
                seconds, _ = server.first_token(prompt)
                took[name].append(1000 * seconds)
            if not quiet:
                print(f"{turn + 1} of {ROUNDS}", file=sys.stderr, flush=True)
    medians = {name: statistics.median(each) for name, each in took.items()}
    spread = {name: [round(min(each), 1), round(max(each), 1)] for name, each in took.items()}
    print(
        json.dumps(
            {
                "prompt_tokens": TOKENS,
                "rounds": ROUNDS,
                "first_token_ms": {name: round(median, 1) for name, median in medians.items()},
                "spread_ms": spread,
                "against_computing": round(medians["holdfast"] / medians["computed"], 3),
                "against_own": round(medians["holdfast"] / medians["own"], 3),
            }
        )
    )


if __name__ == "__main__":
    main()
