"""A prefetch: what became of each object, and a way to wait for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal, cast

from tensorhold import _tensorhold

PrefetchOutcome = Literal["resident", "absent", "refused", "expired", "cancelled", "failed"]
"""``resident``: in memory, of this process or of a holder. ``refused``: memory or the queue was short, or another program
chose the object's key and may write other bytes under it; it was not tried. ``expired``: not in memory within its time. ``cancelled``: given up before it was begun."""

Tier = Literal["local", "dram", "ssd", "missing"]
"""Where a sample is: read ahead into this process's memory, in DRAM of holders, on SSD only, or (a part of it) nowhere
now."""


@dataclass(frozen=True)
class Progress:
    """How far a prefetch is."""

    objects: int
    pending: int
    """Objects on their way."""
    ended: dict[PrefetchOutcome, int]
    """How many objects have ended, by their outcome."""


class Prefetch:
    """Objects on their way to memory. Dropping it stops nothing; it may be waited for from any thread."""

    def __init__(self, native: _tensorhold.Prefetch) -> None:
        self._native = native

    @property
    def outcomes(self) -> list[PrefetchOutcome | None]:
        """The outcome of each object; None for what is on its way. A page is one object, in the order of the keys; a
        sample may have several."""
        return cast("list[PrefetchOutcome | None]", self._native.outcomes())

    @property
    def done(self) -> bool:
        """Whether every object has ended."""
        return None not in self._native.outcomes()

    @property
    def progress(self) -> Progress:
        """How far it is."""
        outcomes = self.outcomes
        ended = Counter(outcome for outcome in outcomes if outcome is not None)
        return Progress(len(outcomes), outcomes.count(None), dict(ended))

    def wait(self, timeout: float) -> bool:
        """Waits until every object has ended, at most for ``timeout`` seconds. Returns whether it has."""
        return None not in self._native.wait(timeout)

    def cancel(self) -> None:
        """Gives up what was not begun, unless another caller has asked for it too. What is in flight ends by itself."""
        self._native.cancel()

    def __repr__(self) -> str:
        progress = self.progress
        return f"<tensorhold.Prefetch of {progress.objects} objects, {progress.pending} on their way, {progress.ended}>"
