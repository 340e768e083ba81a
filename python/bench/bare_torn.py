"""Measures torn reads of the bare engine while an object is removed and written anew: the figure beside ``cargo xtask
prove torn``.

One process writes an object whose bytes are all equal, with another value each time; this process reads it as fast as
it can. A read that the engine reports as complete but whose bytes are not all equal is torn. The proof starts it and
passes the cluster's addresses in ``TENSORHOLD_BESIDE``; it writes one JSON object to its ``result``.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any, Final

KEY: Final = "rewritten"
PAUSE_S: Final = 0.03
"""The pause between two writes, so that there is something to read."""


class Client:
    """A client of the engine with one registered buffer."""

    def __init__(self, task: dict[str, Any]) -> None:
        os.environ.update({**dict(task["client_env"]), "MC_LOG_LEVEL": "FATAL"})
        import numpy
        from mooncake.store import MooncakeDistributedStore

        self.bytes = numpy.zeros(task["len"], dtype=numpy.uint8)
        self.engine = MooncakeDistributedStore()
        if self.engine.setup("127.0.0.1", task["metadata"], 0, 16 << 20, "tcp", "", task["master"]) != 0:
            raise RuntimeError("the engine's client did not set up")
        self.engine.register_buffer(self.bytes.ctypes.data, self.bytes.nbytes)

    def write(self, value: int) -> None:
        self.bytes[:] = value
        self.engine.remove(KEY, True)
        self.engine.put_from(KEY, self.bytes.ctypes.data, self.bytes.nbytes)

    def read(self) -> bool:
        """Reads the object. Returns whether the engine reports that all bytes arrived."""
        return bool(self.engine.get_into(KEY, self.bytes.ctypes.data, self.bytes.nbytes) == self.bytes.nbytes)


def keep_writing(task: dict[str, Any]) -> None:
    client, value = Client(task), 0
    ends = time.monotonic() + float(task["seconds"]) + 60  # unless it is killed earlier
    while time.monotonic() < ends:
        value = value % 250 + 1
        client.write(value)
        time.sleep(PAUSE_S)


def main() -> None:
    task: dict[str, Any] = json.loads(os.environ["TENSORHOLD_BESIDE"])
    client = Client(task)
    writer = multiprocessing.get_context("spawn").Process(target=keep_writing, args=(task,), daemon=True)
    writer.start()
    while not client.read():
        time.sleep(PAUSE_S)
    complete = torn = failed = 0
    begun = time.monotonic()
    while time.monotonic() < begun + float(task["seconds"]):
        if not client.read():
            failed += 1
            continue
        complete += 1
        torn += int(client.bytes.min() != client.bytes.max())
    writer.kill()
    writer.join()
    Path(task["result"]).write_text(json.dumps({"complete": complete, "torn": torn, "failed": failed}))


if __name__ == "__main__":
    main()
    os._exit(0)
