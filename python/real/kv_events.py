"""A subscriber of vLLM's KV events."""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import zmq

ARRIVED_WITHIN_S = 30.0


class Subscriber:
    """Hears vLLM processes. It connects before they bind, and they take seconds from there to their first request: it
    misses nothing."""

    def __init__(self, folder: Path, socket: zmq.Socket[bytes]) -> None:
        self._folder, self._socket = folder, socket
        self.events: list[dict[str, Any]] = []

    def config(self) -> dict[str, Any]:
        """vLLM's setting for the KV events of one more process."""
        endpoint = f"ipc://{self._folder / uuid.uuid4().hex[:8]}"
        self._socket.connect(endpoint)
        return {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint}

    def read(self) -> None:
        """Takes what has arrived."""
        while self._socket.poll(0):
            _topic, _number, payload = self._socket.recv_multipart()
            _at, events, *_rank = msgspec.msgpack.decode(payload)
            self.events += events

    def of_tensorhold(self, kind: str) -> list[dict[str, Any]]:
        """Of the events read so far, those of this type that Tensorhold's tier told."""
        return [event for event in self.events if event["type"] == kind and event.get("ownership") == "tensorhold"]

    def stored(self) -> set[tuple[int, ...]]:
        """The tokens of blocks that Tensorhold told to be stored, on the medium that it says it is."""
        told = [event for event in self.of_tensorhold("BlockStored") if event["medium"] == "STORAGE"]
        return {tuple(event["token_ids"]) for event in told}

    def lacks(self, blocks: set[tuple[int, ...]], step: Any = lambda: None) -> int:
        """How many of these blocks were not told to be stored. Waits for them; steps the engine meanwhile, if it is one of
        this process."""
        deadline = time.monotonic() + ARRIVED_WITHIN_S
        while True:
            step()
            self.read()
            missing = len(blocks - self.stored())
            if not missing or time.monotonic() > deadline:
                return missing
            time.sleep(0.05)


@contextmanager
def subscribed() -> Iterator[Subscriber]:
    """A subscriber, with a folder for sockets."""
    with tempfile.TemporaryDirectory() as folder, zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.subscribe(b"")
        yield Subscriber(Path(folder), socket)


def whole_blocks(prompts: list[list[int]], block: int) -> set[tuple[int, ...]]:
    """The tokens of each whole block of the prompts."""
    return {tuple(prompt[at : at + block]) for prompt in prompts for at in range(0, len(prompt) - block + 1, block)}
