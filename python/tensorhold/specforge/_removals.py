"""Takes samples out of circulation, and keeps track of removals when the index does not answer.

A sample is removed in two cases. *Used up*: the last reader of the sample, in any process, is done with it. *Aborted*:
a caller asks for it. Once the index has recorded the removal, every get fails, in every process, and the objects are
removed: this process does so in the background, and if it dies any other process does. Until the index has recorded it,
the removal is *owed*: it is kept here, gets in this process are refused, every gc and drain tries it again, and it is
never forgotten. A drain that cannot settle owed removals raises.

The index counts readers, and so decides which reader is the last: a reader is released, and the last one's sample is
retired, in one transaction. Samples that others still read are *watched*: a reader that dies never reports that it is
done, so gc counts again, and retires the sample once no reader is left.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from tensorhold._store import FeatureStore, Lease
from tensorhold._values import SampleRef
from tensorhold.errors import Denied, Fenced, TensorholdError, NotFound, Timeout
from tensorhold.specforge._refs import FeatureStoreFailure

log: Final = logging.getLogger("tensorhold.specforge")

SHOWN: Final = 16
"""How many samples an error names."""


@dataclass
class Owed:
    """A removal that is still to be done."""

    sample: str
    ref: SampleRef
    """Exactly this incarnation: by the time of the retry, another one may be live."""
    nbytes: int
    lease: Lease | None = None
    """The reader that has used the sample up: then readers in other processes keep it. None if the sample is aborted."""


class Removals:
    """The removals of one process. Threads may share it; no lock is held during a call."""

    def __init__(self, store: FeatureStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._owed: list[Owed] = []
        self._watched: dict[SampleRef, int] = {}

    def __len__(self) -> int:
        return len(self._owed)

    def refuse(self, ref: SampleRef) -> None:
        """Raises if this sample was given up here and the index does not know that yet."""
        with self._lock:
            given_up = any(owed.ref == ref for owed in self._owed)
        if given_up:
            raise KeyError(f"sample {ref} was released or aborted here")

    def owed(self, samples: Iterable[str]) -> list[str]:
        """Those of these samples whose removal is still owed."""
        with self._lock:
            owed = {owed.sample for owed in self._owed}
        return [sample for sample in dict.fromkeys(samples) if sample in owed]

    def superseded(self, sample: str) -> None:
        """Notes that a new incarnation was committed: removals owed for an older one have thereby happened."""
        for owed in self._forget(sample):
            if owed.lease is not None:
                self.let_go(owed.lease)

    def use_up(self, lease: Lease) -> bool:
        """The reader is done with its sample. Returns whether that ends the sample: not while others read it."""
        self._try(Owed(lease.sample, lease.ref, lease.nbytes, lease))
        with self._lock:
            return lease.ref not in self._watched

    def abort(self, sample: str, ref: SampleRef | None, nbytes: int) -> bool:
        """Ends a sample: whichever incarnation is live now.

        ``ref`` is the incarnation that this process knows, in case the index has to be told later. Without it nothing
        is owed when the index does not answer, and the error is raised: the sample that is live later may be another
        one.
        """
        try:
            self._store.abort(sample)
        except NotFound:
            pass  # the sample has already ended
        except Denied as error:
            if ref is not None:
                self._keep(Owed(sample, ref, nbytes), error)
            raise
        except TensorholdError as error:
            if ref is None:
                raise
            self._keep(Owed(sample, ref, nbytes), error)
            return False
        self.superseded(sample)
        return True

    def abort_at_drain(self, ref: SampleRef, nbytes: int) -> None:
        """Ends this incarnation at the next drain or gc, with all others that wait for it, in one call. Until then it is
        owed: gets in this process are refused."""
        with self._lock:
            self._owed.append(Owed(ref.sample, ref, nbytes))

    def retire(self, ref: SampleRef, nbytes: int) -> bool:
        """Ends exactly this incarnation."""
        return self._try(Owed(ref.sample, ref, nbytes))

    def let_go(self, lease: Lease) -> None:
        """Ends a reader. If the index does not answer, the reader expires by itself, or ends with this process."""
        try:
            lease.release()
        except (NotFound, Fenced):
            pass
        except TensorholdError as error:
            log.warning("a reader of %s was not released; it expires by itself: %s", lease.ref, error)

    def try_again(self, samples: Collection[str] | None = None) -> tuple[int, int]:
        """Tries owed removals again, of these samples or of all. Returns the number of settled samples and of their
        bytes."""
        with self._lock:
            due = [owed for owed in self._owed if samples is None or owed.sample in samples]
        used_up = [owed for owed in due if owed.lease is not None and self._try(owed)]
        settled = used_up + self._try_together([owed for owed in due if owed.lease is None])
        return len(settled), sum(owed.nbytes for owed in settled)

    def look_again(self) -> tuple[int, int]:
        """Retires samples that others were still reading when the reader here was done, and that no process reads any
        more."""
        with self._lock:
            watched = list(self._watched.items())
        ended = nbytes = 0
        for ref, size in watched:
            readers = self._readers(ref)
            if readers:
                continue
            if readers == 0:
                self._retire(ref)
                ended, nbytes = ended + 1, nbytes + size
            with self._lock:
                self._watched.pop(ref, None)
        return ended, nbytes

    def settle(
        self, samples: Collection[str] | None, attempts: int, pause_s: float, sleep: Callable[[float], None], wait: bool
    ) -> dict[str, int]:
        """Tries owed removals until none is left, and with ``wait`` until the objects are gone too; otherwise
        raises."""
        if attempts < 1 or pause_s < 0:
            raise ValueError("max_attempts must be at least 1 and retry_interval_s not below 0")
        done = nbytes = 0
        left = ""
        for attempt in range(1, attempts + 1):
            settled = self.try_again(samples)
            done, nbytes = done + settled[0], nbytes + settled[1]
            left = self._left(samples) or (self._await_objects(pause_s) if wait else "")
            if not left:
                return {"removed": done, "removed_bytes": nbytes, "release_pending": 0, "attempts": attempt}
            if attempt < attempts:
                sleep(pause_s)
        raise FeatureStoreFailure(f"{self._store.name}: after {attempts} attempts {left}")

    def _left(self, samples: Collection[str] | None) -> str:
        with self._lock:
            owed = dict.fromkeys(owed.sample for owed in self._owed)
        left = [sample for sample in owed if samples is None or sample in samples]
        return f"{len(left)} removal(s) are still owed: {left[:SHOWN]}" if left else ""

    def _await_objects(self, within: float) -> str:
        try:
            self._store.drain(timeout=max(within, 0.1))
        except Timeout as error:
            return f"objects of removed samples are still there: {error}"
        except TensorholdError as error:
            return f"it is unknown whether the objects are gone: {error}"
        return ""

    def _try(self, owed: Owed) -> bool:
        try:
            self._do(owed)
        except Denied as error:
            # While a password is being rotated, access is denied for a while: the removal stays owed, and the caller
            # gets the error.
            self._keep(owed, error)
            raise
        except TensorholdError as error:
            self._keep(owed, error)
            return False
        with self._lock:
            self._owed = [other for other in self._owed if other is not owed]
        return True

    def _try_together(self, owed: list[Owed]) -> list[Owed]:
        """Retires samples in one call; returns those that are settled."""
        if not owed:
            return []
        try:
            answers = self._store.retire_many([one.ref for one in owed])
        except TensorholdError as error:
            log.warning("%d removals failed and will be retried: %s", len(owed), error)
            if isinstance(error, Denied):
                raise
            return []
        settled = []
        denied: Denied | None = None
        for one, answer in zip(owed, answers):
            if not isinstance(answer, TensorholdError) or isinstance(answer, (NotFound, Fenced)):
                settled.append(one)
                continue
            log.warning("the removal of %s failed and will be retried: %s", one.ref, answer)
            denied = answer if isinstance(answer, Denied) else denied
        done = {id(one) for one in settled}
        with self._lock:
            self._owed = [other for other in self._owed if id(other) not in done]
        if denied is not None:
            raise denied
        return settled

    def _forget(self, sample: str) -> list[Owed]:
        with self._lock:
            gone = [owed for owed in self._owed if owed.sample == sample]
            self._owed = [owed for owed in self._owed if owed.sample != sample]
        return gone

    def _do(self, owed: Owed) -> None:
        if owed.lease is None:
            self._retire(owed.ref)
        else:
            self._use_up(owed, owed.lease)

    def _use_up(self, owed: Owed, lease: Lease) -> None:
        others = self._release(lease)
        if others is None:
            # The reader may still be counted: its session has ended, and no sweep has come by.
            readers = self._readers(owed.ref)
            others = readers is not None and readers > 1
            if readers is not None and not others:
                self._retire(owed.ref)
        with self._lock:
            if others:
                self._watched[owed.ref] = owed.nbytes
            else:
                self._watched.pop(owed.ref, None)

    def _readers(self, ref: SampleRef) -> int | None:
        (found,) = self._store.find([ref.sample])
        return found.readers if found is not None and found.ref == ref else None

    def _retire(self, ref: SampleRef) -> None:
        try:
            self._store.retire(ref)
        except (NotFound, Fenced):
            pass  # another process has retired it, or a later incarnation replaced it

    def _release(self, lease: Lease) -> bool | None:
        """Ends a reader, and the sample if it was the last one. Returns whether others are left; None if it had ended before,
        and so did not tell."""
        try:
            return not lease.use_up().retired
        except (NotFound, Fenced):
            return None

    def _keep(self, owed: Owed, error: TensorholdError) -> None:
        log.warning("the removal of %s failed and will be retried: %s", owed.ref, error)
        with self._lock:
            if not any(other is owed for other in self._owed):
                self._owed.append(owed)
