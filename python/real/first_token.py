"""Time to the first token, side by side: ``python -m real.first_token [--json] [--spinning] [--denormals]``.

SGLang servers, asked in turns, each flushed before: one computes the prompt, one loads it from Tensorhold, one from SGLang's own
Mooncake back end. The model is large enough that computing the prompt costs more than moving its pages.

All of them are up at once, so that turns are seconds apart and other load on the machine meets each alike. An SGLang scheduler
that has nothing to do spins, and two of them leave the third no core: here they sleep (``--sleep-on-idle``, which acts only
when no request is under way). ``--spinning`` leaves that out, to see what it costs.

SGLang's attention on a CPU (``torch_native``) computes a query for every token of the prefix, from memory that nobody has
written to, and throws the results away. If there are denormal numbers in it, a prefill of 16 tokens takes 5 s instead of
0.5 s, with any back end: here they count as zero, in all three servers. ``--denormals`` leaves that out.
"""

from __future__ import annotations

import argparse
import json
import os
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
TOKENS = 3200
STORED_WITHIN_S = 120.0


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


def queued(server: sglang.SglangServer) -> float:
    """Seconds that requests have waited for their turn since the server was started: for their pages, above all."""
    return sum(value for name, _, value in server.metrics().samples if name == "sglang:queue_time_seconds_sum")


def processor_s(server: sglang.SglangServer) -> float:
    """Seconds of processor time that a server's processes have used."""
    ticks = 0
    for pid in [server.process.pid, *processes.descendants(server.process.pid)]:
        ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def spread(values: list[float]) -> dict[str, float]:
    """Median, quartiles, and the fastest and slowest."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    told = {"median": middle, "quarter": low, "three_quarters": high, "least": min(values), "most": max(values)}
    return {name: round(value, 1) for name, value in told.items()}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--json", action="store_true", help="only the last line, as JSON")
    arguments.add_argument("--spinning", action="store_true", help="let idle servers spin")
    arguments.add_argument("--denormals", action="store_true", help="compute with denormal numbers")
    arguments.add_argument("--rounds", type=int, default=ROUNDS)
    given = arguments.parse_args()
    sys.path.insert(0, str(processes.HERE.parent / "tests"))
    from servers import running_cluster

    flags = [] if given.spinning else ["--sleep-on-idle"]
    prompt = [(7 * at + at * at // 11) % 900 + 5 for at in range(TOKENS)]
    whole = (TOKENS - 1) // sglang.PAGE * sglang.PAGE
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(running_cluster(holders=2, segment_mib=512))
        folder = model.make(scratch / "llama", "large")
        options = {
            "computed": (None, "dynamic"),
            "tensorhold": (sglang.backend(cluster, uuid.uuid4().hex[:8]), "dynamic"),
            "own": (own(cluster), "mooncake"),
        }
        up = {
            name: stack.enter_context(
                sglang.running(
                    folder, option, scratch, storage=storage, flags=flags, flush_denormals=not given.denormals
                )
            )
            for name, (option, storage) in options.items()
        }
        for name, server in up.items():
            deadline = time.monotonic() + STORED_WITHIN_S
            while name != "computed":  # until what was written through is found
                server.flush()
                _, hits = server.first_token(prompt)
                if hits >= whole:
                    break
                if time.monotonic() > deadline:
                    raise processes.Stuck(f"{name}: {hits} of {TOKENS} tokens are found:\n{processes.end_of(server.log)}")
        took: dict[str, list[float]] = {name: [] for name in up}
        waited: dict[str, list[float]] = {name: [] for name in up}
        worked: dict[str, list[float]] = {name: [] for name in up}
        for turn in range(given.rounds):
            for name, server in up.items():
                server.flush()
                before, used = queued(server), processor_s(server)
                seconds, hits = server.first_token(prompt)
                if name != "computed" and hits < whole:
                    raise RuntimeError(f"{name} found {hits} of {whole} tokens")
                took[name].append(1000 * seconds)
                worked[name].append(1000 * (processor_s(server) - used))
                waited[name].append(1000 * (queued(server) - before))
            if not given.json:
                last = {name: round(each[-1]) for name, each in took.items()}
                print(f"{turn + 1} of {given.rounds}: {last} ms", file=sys.stderr, flush=True)
    medians = {name: statistics.median(each) for name, each in took.items()}
    print(
        json.dumps(
            {
                "prompt_tokens": TOKENS,
                "found_tokens": whole,
                "rounds": given.rounds,
                "idle_servers": "spin" if given.spinning else "sleep",
                "load_of_the_machine": [round(each, 1) for each in os.getloadavg()],
                "first_token_ms": {name: spread(each) for name, each in took.items()},
                "of_it_queued_ms": {name: spread(each) for name, each in waited.items()},
                "processor_ms": {name: spread(each) for name, each in worked.items()},
                "against_computing": round(medians["tensorhold"] / medians["computed"], 3),
                "against_own": round(medians["tensorhold"] / medians["own"], 3),
            }
        )
    )


if __name__ == "__main__":
    main()
