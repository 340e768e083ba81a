"""The store: SpecForge's calls, on a Tensorhold store that all processes of a run share.

| SpecForge | here |
|---|---|
| ``SampleRef`` | a sample of the store ``store_id``; its generation is given by the shared index (``_refs``) |
| ``get`` and its ``FeatureHandle`` | a reader in the index, held by this process until ``release``; the handle's token finds it |
| ``get`` with ``retain_on_release`` | a read without a lease: no release ends the sample, so nothing has to count readers |
| ``release`` of the last handle | the sample is retired: from then on no process gets it (``_removals``) |
| ``release`` with ``retain_on_release`` | the sample stays, until a process aborts it |
| ``abort`` | the sample is retired, whichever process reads it |
| ``track_external_attempt``, ``adopt`` | a reservation in the index, and its commit (``_external``) |
| ``max_resident_bytes`` | the budget of the store, over all processes |

A handle is valid only in the process that got it; releasing it in another process does nothing, and does not free its
sample. If the process dies, the index ends its readers, and the sample goes to the next process that gets it.

A reader lasts ``lease_seconds`` (an hour by default). ``gc``, which SpecForge's loader calls all the time, extends it.
A reader protects the right of others to get the sample, not the tensors that ``get`` returned: those are this process's
own memory.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, TypeAlias

import torch
from specforge.runtime.contracts import FeatureHandle, FeatureSpec
from specforge.runtime.contracts import SampleRef as Reference
from specforge.runtime.data_plane.disaggregated import AuthPolicy
from specforge.runtime.data_plane.feature_store import FeatureStore as Contract

from tensorhold._environment import merged, settings_beside
from tensorhold._device import dense
from tensorhold._getting import again_if_fenced, get_waiting
from tensorhold._lending import check_memory
from tensorhold._opening import open as open_store
from tensorhold._store import FeatureStore, Lease
from tensorhold._values import SampleRef
from tensorhold.errors import TensorholdError, NotFound
from tensorhold.specforge import _refs as refs
from tensorhold.specforge._external import ExternalAttempts
from tensorhold.specforge._known import KnownSamples
from tensorhold.specforge._refs import FeatureStoreFailure
from tensorhold.specforge._removals import Removals

log: Final = logging.getLogger("tensorhold.specforge")

LEASE_SECONDS: Final = 3600.0

DRAINED_NEXT: Final = "optimizer-boundary-durable-ack"
"""The reason that SpecForge gives when it aborts the samples of a step one by one. It drains exactly these next (its main
branch retries their removal one step later), and if it dies before, its ledger makes it abort them again: so they may wait
for that, which ends them all in one call."""

Read: TypeAlias = "tuple[SampleRef, Lease | None, dict[str, torch.Tensor]]"
"""Which incarnation was read, the reader that has to be released, and the tensors."""


class TensorholdFeatureStore(Contract):  # type: ignore[misc]  # specforge has no type information
    """A :class:`specforge.runtime.data_plane.feature_store.FeatureStore` that all processes of a run share.

    It takes the arguments of ``MooncakeFeatureStore``, and every setting of :func:`tensorhold.open`. ``store`` is a
    Tensorhold store that is already open, or a Mooncake client that is set up; the caller remains responsible for closing
    it. ``external_sample_bytes`` is the share of the budget that is reserved for one sample of a serving engine:
    SpecForge announces such samples before their size is known.

    ``replica_num`` copies are kept of each object, as far as the cluster has that many holders. ``hard_pin=False`` is
    refused: an object that may be evicted is not in custody. ``max_release_attempts`` is accepted but not needed:
    ``gc`` retries until a removal is done. A segment in ``setup_kwargs`` is not lent, see ``_lending``.

    Of SpecForge's main branch: ``receive_pool_bytes`` is the size of the pool. ``receive_buffers`` may be ``pinned`` or
    ``pageable``, and tensors arrive in memory of the pool either way. ``max_quarantined_bytes`` is accepted but not needed:
    memory that a failed transfer may still write to belongs to the pool, and comes back to it.
    """

    def __init__(
        self,
        *,
        store_id: str | None = None,
        store: FeatureStore | object | None = None,
        setup_kwargs: Mapping[str, Any] | None = None,
        auth: AuthPolicy | None = None,
        credential: str | None = None,
        max_resident_bytes: int | None = None,
        max_hold_age_s: float | None = None,
        retain_on_release: bool = False,
        max_release_attempts: int = 3,
        replica_num: int = 1,
        hard_pin: bool = True,
        receive_buffers: str = "pinned",
        receive_pool_bytes: int | None = None,
        max_quarantined_bytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        external_sample_bytes: int = 0,
        **settings: Any,
    ) -> None:
        self.auth = auth or AuthPolicy()
        self._credential = credential
        self.auth.check(credential)
        _check_arguments(max_release_attempts, replica_num, hard_pin, receive_buffers)
        self._close: Callable[[], None] = _leave_open
        if isinstance(store, FeatureStore):
            told = setup_kwargs or settings or max_resident_bytes is not None or replica_num != 1
            if told or store_id not in (None, store.name):
                raise ValueError("an open store has its settings already; pass either a store or settings, not both")
        else:
            with refs.in_specforge_terms():
                given = merged(
                    {"lease_seconds": LEASE_SECONDS, "features": {"replicas": replica_num}},
                    {} if receive_pool_bytes is None else {"pool_bytes": receive_pool_bytes},
                    _of_mooncake(setup_kwargs or {}),
                    settings_beside(settings),
                    settings,
                    {} if max_resident_bytes is None else {"budget": max_resident_bytes},
                )
                told_bytes, told_name = int(given.pop("external_sample_bytes", 0)), given.pop("store", None)
                external_sample_bytes = external_sample_bytes or told_bytes
                store = _opened(store_id or told_name or uuid.uuid4().hex[:8], store, setup_kwargs or {}, given)
            self._close = store.close
        self.max_release_attempts = max_release_attempts
        self.store_id = store.name
        self.max_resident_bytes = store.settings.budget
        self.max_hold_age_s = max_hold_age_s
        self.retain_on_release = retain_on_release
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._leases: dict[str, Lease | None] = {}  # by the token of a handle; None if it was read without a lease
        self._known = KnownSamples(store)
        self._numbers = itertools.count(1)
        self._force_freed = 0
        self._removals = Removals(store)
        self._external = ExternalAttempts(store, self.store_id, external_sample_bytes)
        log.info(
            "process %d keeps the samples of %s in Tensorhold: master %s, index %s",
            os.getpid(),
            self.store_id,
            store.settings.master,
            ", ".join(store.settings.etcd),
        )

    def put(self, tensors: dict[str, torch.Tensor], *, sample_id: str, metadata: dict[str, Any]) -> Reference:
        """Puts a sample: visible to all processes as a whole, or not at all. Over the budget it waits for room, then
        raises MemoryError."""
        self.auth.check(self._credential)
        if not tensors:
            raise ValueError("a sample needs at least one tensor")
        staged = {name: dense(tensor) for name, tensor in tensors.items()}
        with refs.in_specforge_terms():
            ref = self._store.put(sample_id, staged, groups=())
            nbytes = self._store.estimate_bytes(staged)
        self._removals.superseded(sample_id)
        self._known.add(ref, nbytes, self._clock())
        return refs.reference(self.store_id, ref, staged, nbytes, metadata)

    def get(
        self, sample_ref: Reference, *, device: torch.device | str = "cpu", names: list[str] | None = None
    ) -> tuple[dict[str, torch.Tensor], FeatureHandle]:
        """Exactly the committed bytes, in this process's own memory; KeyError once the sample is gone, in every
        process."""
        self.auth.check(self._credential)
        wanted = list(dict.fromkeys(names or sample_ref.feature_keys))
        read = self._get_retained if self.retain_on_release else self._read_and_get
        ref, lease, tensors = again_if_fenced(lambda: read(sample_ref, wanted, device))
        token = f"{ref}:{next(self._numbers)}"
        with self._lock:
            self._leases[token] = lease
        nbytes = sum(tensor.nbytes for tensor in tensors.values()) if lease is None else lease.nbytes
        self._known.add(ref, nbytes, None)
        return {name: tensors[name] for name in wanted}, FeatureHandle(ref.sample, ref.generation, token)

    def _get_retained(self, sample_ref: Reference, wanted: list[str], device: torch.device | str) -> Read:
        """Without a lease: what is retained ends by an abort alone, and no lease would delay that."""
        ref = refs.custody_of(self.store_id, sample_ref) or self._live_as(sample_ref)
        self._removals.refuse(ref)
        with refs.in_specforge_terms():
            tensors = get_waiting(lambda: self._store.get(ref, wanted, as_="torch", device=device))
        return ref, None, tensors

    def _live_as(self, sample_ref: Reference) -> SampleRef:
        with refs.in_specforge_terms():
            (found,) = self._store.find([sample_ref.sample_id])
        if found is None or not refs.is_meant(found.tensors, sample_ref):
            raise KeyError(refs.not_in_custody(self.store_id, sample_ref))
        return found.ref

    def _read_and_get(self, sample_ref: Reference, wanted: list[str], device: torch.device | str) -> Read:
        ref = refs.custody_of(self.store_id, sample_ref)
        if ref is not None and torch.device(device).type == "cpu":
            self._removals.refuse(ref)
            with refs.in_specforge_terms():
                lease, tensors = get_waiting(lambda: self._store.lease_get(ref, wanted, as_="torch"))
            return lease.ref, lease, tensors
        with refs.in_specforge_terms():
            lease = self._read(sample_ref)
        try:
            missing = set(wanted) - {spec.name for spec in lease.tensors}
            if missing:
                raise KeyError(f"sample {lease.ref} has no {sorted(missing)}")
            with refs.in_specforge_terms():
                tensors = get_waiting(lambda: lease.get(wanted, as_="torch", device=device))
            return lease.ref, lease, tensors
        except BaseException:
            self._removals.let_go(lease)  # only the reader ends: the sample is not used up
            raise

    def _read(self, sample_ref: Reference) -> Lease:
        ref = refs.custody_of(self.store_id, sample_ref)
        if ref is not None:
            self._removals.refuse(ref)
            return self._store.lease_shared(ref)
        try:
            lease = self._store.lease_shared(sample_ref.sample_id)
        except NotFound as error:
            raise KeyError(refs.not_in_custody(self.store_id, sample_ref)) from error
        if refs.is_meant(lease.tensors, sample_ref):
            try:
                self._removals.refuse(lease.ref)
                return lease
            except KeyError:
                self._removals.let_go(lease)
                raise
        self._removals.let_go(lease)
        raise KeyError(refs.not_in_custody(self.store_id, sample_ref))

    def release(self, handle: FeatureHandle, *, reason: str = "consumed") -> None:
        """Ends a reader. Unless samples are retained, the end of the last reader, in any process, ends the sample.
        Idempotent."""
        with self._lock:
            lease = self._leases.pop(handle.lease_token, None)
        if lease is not None and self._removals.use_up(lease):
            self._known.forget(lease.ref)
            self._external.removing()

    def abort(self, sample_id: str, *, reason: str = "aborted") -> None:
        """Ends a sample, whichever processes put it and read it. Does nothing if it has ended.

        If the index does not answer, the removal of a sample that this process knows is owed
        (``drain_pending_removals``). For a sample that it does not know this raises, because another sample may be live
        under the id later.
        """
        known = self._known.pop(sample_id)
        if known is not None and reason == DRAINED_NEXT and self.retain_on_release:
            self._removals.abort_at_drain(known.ref, known.nbytes)
            self._external.removing()
            return
        ref, nbytes = (None, 0) if known is None else (known.ref, known.nbytes)
        with refs.in_specforge_terms():
            self._removals.abort(sample_id, ref, nbytes)
        with self._lock:
            readers = [lease for lease in self._leases.values() if lease is not None and lease.sample == sample_id]
        for lease in readers:
            self._removals.let_go(lease)  # the reader can get nothing more, and would delay the removal of the bytes
        self._external.removing()

    def adopt(self, sample_ref: Reference) -> None:
        """Takes a sample that a serving engine wrote into custody. A sample that is already in custody is only
        remembered."""
        refs.writer_generation(sample_ref)
        ref = refs.custody_of(self.store_id, sample_ref) or self._external.adopt(sample_ref)
        self._known.add(ref, int(sample_ref.estimated_bytes or 0), self._clock())

    def track_external_attempt(self, sample_id: str, *, generation: int, feature_names: Iterable[str]) -> None:
        """Announces a sample that a serving engine is about to write: if no process adopts it, it is removed, even if
        this process dies."""
        self._external.track(str(sample_id), int(generation), feature_names)

    def discard_external_attempts(self, *, reason: str = "unadopted-external-capture") -> int:
        """Gives up the samples that were announced and never adopted. Returns their number. Their writers must have
        stopped."""
        return self._external.discard()

    def drain_pending_removals(
        self, *, max_attempts: int = 40, retry_interval_s: float = 0.5, sleep: Callable[[float], None] = time.sleep
    ) -> dict[str, int]:
        """Settles every removal that is owed, and waits until the objects are gone; RuntimeError if that fails."""
        return self._removals.settle(None, max_attempts, retry_interval_s, sleep, wait=True)

    def drain_sample_removals(
        self,
        sample_ids: list[str],
        *,
        max_attempts: int = 8,
        retry_interval_s: float = 0.25,
        sleep: Callable[[float], None] = time.sleep,
    ) -> dict[str, int]:
        """Settles the removals of these samples: the index has recorded them, so they will happen. Does not wait for
        the bytes."""
        return self._removals.settle(frozenset(sample_ids), max_attempts, retry_interval_s, sleep, wait=False)

    def retry_sample_removals(self, sample_ids: Iterable[str]) -> dict[str, Any]:
        """Tries once to settle removals, without a pause: what SpecForge's main branch calls at each optimizer boundary, for
        the samples of the one before. All that are owed are settled along with them."""
        asked = list(dict.fromkeys(sample_ids))
        with refs.in_specforge_terms():
            _, nbytes = self._removals.try_again()
        remaining = self._removals.owed(asked)
        return {
            "removed": len(asked) - len(remaining),
            "removed_bytes": nbytes,
            "release_pending": len(remaining),
            "remaining_ids": remaining,
            "attempts": 1,
        }

    def gc(self, *, now: float | None = None) -> dict[str, int]:
        """Settles owed removals, extends readers, and ends samples past ``max_hold_age_s`` that no process reads."""
        now = self._clock() if now is None else now
        freed = nbytes = 0
        try:
            self._renew()
            for count, size in (self._removals.try_again(), self._removals.look_again(), self._end_old(now)):
                freed, nbytes = freed + count, nbytes + size
        except TensorholdError as error:
            log.warning("gc could not finish; the next gc continues: %s", error)
        with self._lock:
            self._force_freed += freed
        return {"force_freed": freed, "force_freed_bytes": nbytes, "release_pending": len(self._removals)}

    def estimate_bytes(self, specs: Mapping[str, FeatureSpec]) -> int:
        """The number of bytes of these features, by their true element sizes."""
        return self._store.estimate_bytes([refs.tensor_spec(spec) for spec in specs.values()])

    def health(self) -> dict[str, Any]:
        """The fields that SpecForge's stores report, and the usage of the whole cluster (``engine``)."""
        told: dict[str, Any] = {"pending_frees": 0, "engine": None}
        reachable = True
        try:
            self._known.look()
            told = self._store.health()
        except TensorholdError as error:
            reachable = False
            log.warning("the store's health could not be read: %s", error)
        now, samples = self._clock(), self._known.all()
        ages = [now - known.since for known in samples if known.since is not None]
        return {
            "store_id": self.store_id,
            "backend": "tensorhold",
            "reachable": reachable,
            "resident_samples": len(samples),
            "resident_bytes": sum(known.nbytes for known in samples),
            "max_resident_bytes": self.max_resident_bytes,
            "provisional_external": len(self._external),
            "active_leases": len(self._leases),
            "release_pending": len(self._removals) + int(told["pending_frees"]),
            "auth_required": self.auth.required,
            "oldest_age_s": max(ages, default=0.0),
            "avg_age_s": sum(ages) / len(ages) if ages else 0.0,
            "force_freed_total": self._force_freed,
            "hard_pin": True,
            "engine": told["engine"],
        }

    def close(self) -> None:
        """Closes the store if this object opened it. Readers end; samples stay. Removals that are still owed are tried
        once more; the log names the samples that could not be removed."""
        with self._lock:
            self._leases.clear()
        try:
            if len(self._removals):
                self._store.find(["-"])  # if the index does not answer, each removal would wait for its own timeout
                self._removals.settle(None, 1, 0.0, time.sleep, wait=False)
        except (TensorholdError, FeatureStoreFailure) as error:
            log.error("%d removals are owed and are given up by closing: %s", len(self._removals), error)
        self._close()

    def __enter__(self) -> TensorholdFeatureStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _end_old(self, now: float) -> tuple[int, int]:
        if self.max_hold_age_s is None:
            return 0, 0
        limit = now - self.max_hold_age_s
        old = [known for known in self._known.all() if known.since is not None and known.since < limit]
        idle = [known for known, found in self._known.look(old) if found.readers == 0]
        ended = [known for known in idle if self._removals.retire(known.ref, known.nbytes)]
        for known in idle:
            self._known.forget(known.ref)
        return len(ended), sum(known.nbytes for known in ended)

    def _renew(self) -> None:
        with self._lock:
            leases = [lease for lease in self._leases.values() if lease is not None]
        for lease, result in zip(leases, self._store.renew_many(leases) if leases else []):
            if isinstance(result, TensorholdError):
                log.debug("the reader of %s was not extended: %s", lease.ref, result)


def _leave_open() -> None:
    """Does nothing: the caller opened the store, and closes it."""


def _check_arguments(max_release_attempts: int, replica_num: int, hard_pin: bool, receive_buffers: str) -> None:
    if receive_buffers not in ("pinned", "pageable"):
        raise ValueError(
            f"receive_buffers={receive_buffers!r} is not supported: tensors arrive in host memory; use pinned or pageable"
        )
    if replica_num < 1:
        raise ValueError("replica_num must be at least 1")
    if max_release_attempts < 1:
        raise ValueError("max_release_attempts must be at least 1")
    if not hard_pin:
        raise ValueError(
            "hard_pin=False is not supported: objects that the engine may evict are lost silently; this store keeps "
            "what was committed. Limit it by max_resident_bytes instead; a put then waits for room"
        )


def _opened(name: str, client: object | None, setup: Mapping[str, Any], settings: Mapping[str, Any]) -> FeatureStore:
    store = open_store(name, client=client, **settings)
    try:
        if client is None and not settings.get("lazy"):
            check_memory(store, int(setup.get("global_segment_size", 0)), "global_segment_size", log)
    except BaseException:
        store.close()
        raise
    return store


def _of_mooncake(setup: Mapping[str, Any]) -> dict[str, Any]:
    """Translates the arguments of Mooncake's ``setup`` into settings."""
    if setup.get("protocol") == "nvlink":
        raise ValueError("protocol='nvlink' keeps samples in the server's GPU, not in Mooncake; use tcp or rdma")
    settings: dict[str, Any] = {}
    names = {
        "master_server_addr": "master",
        "metadata_server": "metadata",
        "local_hostname": "local_hostname",
        "protocol": "protocol",
    }
    engine = {"rdma_devices": "devices", "local_buffer_size": "buffer_bytes"}
    for name, value in setup.items():
        if name in names:
            settings[names[name]] = value
        elif name in engine:
            settings.setdefault("engine", {})[engine[name]] = value
        elif name != "global_segment_size":  # ignored: the segment is not lent
            raise ValueError(f"setup_kwargs: {name} has no meaning here; see tensorhold.open for the settings")
    return settings
