"""What the host counts: above all, from where the tokens came that it did not compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tensorhold import kv


@dataclass(frozen=True)
class Cached:
    """Tokens that were not computed, by the layer that had them."""

    device: int = 0
    host: int = 0
    l3: int = 0

    def __add__(self, other: Cached) -> Cached:
        return Cached(self.device + other.device, self.host + other.host, self.l3 + other.l3)


@dataclass
class Metrics:
    """Counted since the start."""

    cached: Cached = field(default_factory=Cached)
    computed: int = 0
    """Tokens that the model ran on."""
    evicted_device_pages: int = 0
    evicted_host_pages: int = 0
    retracted: int = 0
    aborted: int = 0
    rounds: int = 0
    most_running: int = 0
    """The most requests that the model ran on in one round."""


class Sources:
    """Where pages came from. Operations do not name their request, so this goes by pages: one that was fetched from L3, or
    loaded from the host, counts as such for the first request that gets it, and from then on as the device's."""

    def __init__(self) -> None:
        self._fetched: dict[int, bytes] = {}
        self._loaded: dict[int, tuple[bytes, bool]] = {}

    def note(self, operation: kv.Operation, completed: int) -> None:
        """The first ``completed`` pages of an operation are there."""
        for page in operation.pages[:completed]:
            if operation.kind == "prefetch" and page.host is not None:
                self._fetched[page.host] = page.key
            elif operation.kind == "load-back" and page.host is not None and page.device is not None:
                fetched = self._fetched.pop(page.host, None) == page.key
                self._loaded[page.device] = (page.key, fetched)

    def count(self, keys: Sequence[bytes], grant: kv.Grant, page_tokens: int) -> Cached:
        """The cached tokens of a grant, for a request with these keys."""
        device = host = l3 = 0
        for key, page in list(zip(keys, grant.pages, strict=False))[: grant.cached]:
            loaded, fetched = self._loaded.pop(page, (b"", False))
            if loaded != key:
                device += page_tokens
            elif fetched:
                l3 += page_tokens
            else:
                host += page_tokens
        return Cached(device, host, l3)
