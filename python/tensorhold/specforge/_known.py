"""The samples that this process knows: for health, for gc, and to name an incarnation when the index cannot be asked.

It is a cache, not the truth: samples also end in other processes. A caller that needs to be sure looks the samples up,
and those that have ended are then forgotten. A process that only puts must not remember samples for ever, so adding a
sample looks all of them up whenever their number has doubled.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Final

from tensorhold._store import FeatureStore
from tensorhold._values import Found, SampleRef
from tensorhold.errors import TensorholdError

log: Final = logging.getLogger("tensorhold.specforge")

LOOK_AT_ONCE: Final = 256
"""How many samples are looked up in one call."""
FIRST_LOOK: Final = 1024
"""How many samples are remembered before the first lookup."""


@dataclass(frozen=True)
class Known:
    """A sample that this process has put, adopted or got, and not seen end."""

    ref: SampleRef
    nbytes: int
    since: float | None
    """When it was put or adopted here; None if it was only got."""


class KnownSamples:
    """The samples that this process knows. Threads may share it; no lock is held during a call."""

    def __init__(self, store: FeatureStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._samples: dict[str, Known] = {}
        self._look_at = FIRST_LOOK

    def add(self, ref: SampleRef, nbytes: int, since: float | None) -> None:
        """Remembers a sample. Getting a sample that was put here changes nothing."""
        with self._lock:
            known = self._samples.get(ref.sample)
            if since is not None or known is None or known.ref.generation < ref.generation:
                # Without the description, which would take more memory than all the rest.
                self._samples[ref.sample] = Known(SampleRef(ref.sample, ref.generation), nbytes, since)
            crowded = len(self._samples) >= self._look_at
        if not crowded:
            return
        try:
            self.look()
        except TensorholdError as error:
            log.warning("could not look up which samples have ended: %s", error)
        with self._lock:
            self._look_at = max(FIRST_LOOK, 2 * len(self._samples))

    def all(self) -> list[Known]:
        """All known samples."""
        with self._lock:
            return list(self._samples.values())

    def pop(self, sample: str) -> Known | None:
        """Forgets a sample, whichever its incarnation, and returns what was known of it."""
        with self._lock:
            return self._samples.pop(sample, None)

    def forget(self, ref: SampleRef) -> None:
        """Forgets exactly this incarnation."""
        with self._lock:
            known = self._samples.get(ref.sample)
            if known is not None and known.ref == ref:
                del self._samples[ref.sample]

    def look(self, samples: list[Known] | None = None) -> list[tuple[Known, Found]]:
        """Looks up samples, by default all, and forgets those that have ended."""
        asked = self.all() if samples is None else samples
        live = []
        for at in range(0, len(asked), LOOK_AT_ONCE):
            some = asked[at : at + LOOK_AT_ONCE]
            for known, found in zip(some, self._store.find([known.ref.sample for known in some])):
                if found is not None and found.ref == known.ref:
                    live.append((known, found))
                else:
                    self.forget(known.ref)
        return live
