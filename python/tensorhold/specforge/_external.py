"""Samples whose objects a serving engine writes, under keys that SpecForge chooses.

```text
              track                          adopt
(nothing) ───────────▶ announced, in the index ─────▶ live, as if it had been put
                          │ discard · this process dies · 10 minutes pass
                          ▼
                                              the objects are removed, by this process or by any process's sweep
```

Invariants. A key is announced before its writer is asked to write, so no crash leaves an object that the index does not
know. A live sample's keys are never announced again: giving up that announcement would remove the live sample's
objects.

If the reply to an adoption is lost, the announcement stays here. A caller that adopts the same reference again finds
the sample live, and that counts as the same adoption.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from specforge.runtime.contracts import SampleRef as Reference

from tensorhold._tensorhold import Announced
from tensorhold._store import FeatureStore
from tensorhold._values import AdoptedTensor, Found, SampleRef
from tensorhold.errors import Fenced, TensorholdError, NotFound
from tensorhold.specforge import _refs as refs


class ExternalAttempts:
    """The samples that serving engines were asked to write and that are not adopted yet. Threads may share it."""

    def __init__(self, store: FeatureStore, store_id: str, bytes_each: int) -> None:
        self._store = store
        self._store_id = store_id
        self._bytes_each = bytes_each
        self._announced: dict[tuple[str, int], Announced] = {}
        self._removing = False
        # Held across calls: an adoption and a discard of the same sample must not interleave. Each call has a deadline.
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._announced)

    def track(self, sample: str, generation: int, names: Iterable[str]) -> None:
        """Announces a sample that is about to be written. With a budget, a full store refuses it here."""
        wanted = dict.fromkeys(str(name) for name in names)
        if not wanted:
            raise ValueError("name at least one feature that will be written")
        keys = [self._key(sample, generation, name) for name in (*wanted, refs.WRITTEN)]
        attempt = (sample, generation)
        with self._lock, refs.in_specforge_terms():
            known = self._announced.get(attempt)
            if known is not None:
                if set(keys) <= set(known.keys):
                    return  # a retry of the same sample, which is announced already
                keys = list(dict.fromkeys([*known.keys, *keys]))
                self._give_up(attempt, known)
            if self._live(sample, generation) is not None:
                return  # already in custody: the engine keeps its bytes
            self._await_removals()
            self._announced[attempt] = self._store.announce(sample, keys, self._bytes_each)

    def adopt(self, sample: Reference) -> SampleRef:
        """Takes the written objects into custody. From then on the reference carries our generation."""
        generation = refs.writer_generation(sample)
        attempt = (sample.sample_id, generation)
        tensors = [
            AdoptedTensor(refs.tensor_spec(spec), self._key(*attempt, name))
            for name, spec in sample.feature_specs.items()
        ]
        tensors.append(AdoptedTensor(refs.written_spec(generation), self._key(*attempt, refs.WRITTEN)))
        with self._lock, refs.in_specforge_terms():
            announced = self._announced.get(attempt)
            ref = self._adopt(sample.sample_id, generation, announced, tensors)
            self._announced.pop(attempt, None)
        sample.metadata[refs.CUSTODY] = ref.generation
        sample.metadata[refs.GENERATION] = refs.told(generation)
        return ref

    def _adopt(
        self, sample: str, generation: int, announced: Announced | None, tensors: list[AdoptedTensor]
    ) -> SampleRef:
        if announced is None:
            live = self._live(sample, generation)
            return live.ref if live is not None else self._store.adopt(sample, tensors, groups=())
        try:
            return self._store.adopt(announced, tensors, groups=())
        except TensorholdError:
            live = self._live(sample, generation)
            if live is not None and live.ref == announced.ref:
                return live.ref  # an earlier call did it, and its reply was lost
            raise

    def discard(self) -> int:
        """Gives up samples that were never adopted. Those that cannot be given up now stay here, and an error names
        them."""
        failed: dict[str, str] = {}
        discarded = 0
        with self._lock:
            for attempt, announced in list(self._announced.items()):
                try:
                    self._give_up(attempt, announced)
                    discarded += 1
                except TensorholdError as error:
                    failed[attempt[0]] = str(error)
        if failed:
            raise refs.FeatureStoreFailure(f"these captures could not be given up now, call again: {failed}")
        return discarded

    def removing(self) -> None:
        """Notes that a sample was ended here: its keys must not be written again until its objects are removed."""
        self._removing = True  # without the lock: ending a sample must not wait for an announcement

    def _await_removals(self) -> None:
        """Waits for removals: keys to be announced may be among those being removed, and objects written before that
        would be removed with them."""
        if not self._removing:
            return
        self._removing = False
        try:
            self._store.drain()
        except BaseException:
            self._removing = True
            raise

    def _give_up(self, attempt: tuple[str, int], announced: Announced) -> None:
        live = self._live(*attempt)
        if live is None or live.ref != announced.ref:  # otherwise it was adopted, and the reply was lost
            try:
                self._store.discard(announced)
            except (NotFound, Fenced):
                pass  # the announcement has expired: a sweep gives it up, or has done so
        self._announced.pop(attempt, None)
        self._removing = True

    def _live(self, sample: str, generation: int) -> Found | None:
        (found,) = self._store.find([sample])
        return found if found is not None and refs.was_written_as(found.tensors, generation) else None

    def _key(self, sample: str, generation: int, name: str) -> str:
        return f"{self._store_id}/{sample}/g{generation}/{name}"
