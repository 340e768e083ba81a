"""The other side of the engine benchmark: the wheel's calls from Python, without Tensorhold.

Started by the example `engine_bench`, which tells it over standard input what to do next, so that only one side works
at a time. Arguments: the cluster's endpoints and the cases, both as JSON. Commands: `put|get|remove CASE ROUND`;
each is answered with the seconds it took.
"""

import json
import os
import sys
import time

endpoints, cases = json.loads(sys.argv[1]), json.loads(sys.argv[2])
os.environ.update(endpoints["client_env"])

import numpy as np
from mooncake.store import MooncakeDistributedStore, ReplicateConfig

store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", endpoints["metadata"], 0, 16 << 20, "tcp", "", endpoints["master"]) == 0
pinned = ReplicateConfig()
pinned.with_hard_pin = True


class Case:
    """The objects of one case: source and destination memory, registered once, in one piece each."""

    def __init__(self, sizes):
        self.sizes = sizes
        total = sum(sizes)
        self.memory = [np.full(total, fill, dtype=np.uint8) for fill in (7, 0)]
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        self.sources, self.targets = ([m.ctypes.data + start for start in starts] for m in self.memory)
        for memory in self.memory:
            assert store.register_buffer(memory.ctypes.data, total) == 0

    def keys(self, name, turn):
        return [f"bare/{name}/{turn}/{i}" for i in range(len(self.sizes))]


objects = {name: Case(sizes) for name, sizes in cases.items()}
print("ready", flush=True)

for line in sys.stdin:
    command, name, turn = line.split()
    case = objects[name]
    keys = case.keys(name, turn)
    begin = time.perf_counter()
    if command == "put":
        codes = store.batch_put_from(keys, case.sources, case.sizes, pinned)
    elif command == "get":
        codes = store.batch_get_into(keys, case.targets, case.sizes)
    else:
        codes = store.batch_remove(keys, True)
    seconds = time.perf_counter() - begin
    wanted = case.sizes if command == "get" else [0] * len(keys)
    assert list(codes) == wanted, (line, codes)
    print(seconds, flush=True)

store.close()
