"""TorchSpec's store for EAGLE hidden states, in Tensorhold's custody. Needs ``torch``.

```python
from tensorhold.torchspec import EagleStore

store = EagleStore("run-7", master="127.0.0.1:50051", etcd=["http://127.0.0.1:2379"])
```

One key is one sample with up to four tensors, under TorchSpec's suffixes without the underscore: ``hs``, ``ids``, ``tgt``
and ``lhs``. They are visible together or not at all.

```text
        put: copied into the pool            transferred and committed
(nothing) ───────────────────────▶ in flight ─────────────────────────▶ there ──remove──▶ gone, for all processes
                                      │ failed: nothing is visible
                                      ▼
                                                                      reported by flush, for every key
```

A put returns when the tensors are copied into registered memory of the pool, so the caller may overwrite them. The pool
limits the bytes in flight; when it is full, or the store's budget is, putting waits. A sample of more than half of the
pool is not copied: its put returns when it has ended, and Ctrl-C gives it up. ``flush`` waits for all puts and raises
if any of them failed. If the process dies before that, other processes remove what was not committed. Of several puts
of one key the last call wins. A removal takes puts in flight into account: a put that has not begun is cancelled, and
one that has begun is waited for.

TorchSpec builds its store from a ``MooncakeConfig`` in four places. :func:`replace_mooncake_store` makes all of them
build this one, in the process that calls it; :meth:`EagleStore.from_config` does so for one.

With ``defer_removals`` a removal is only recorded until :meth:`EagleStore.trained` is called. TorchSpec's trainer
removes a sample as soon as it has got it; a step that fails after that could not be repeated. The record names the
incarnation that the key means at that moment: a later put of the key stays.
"""

from __future__ import annotations

import logging
import sys
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any, Final

import torch

from tensorhold._device import dense
from tensorhold._environment import merged, settings_beside
from tensorhold._getting import again_if_fenced, get_waiting
from tensorhold._lending import check_memory
from tensorhold._opening import open as open_store
from tensorhold._settings import Settings
from tensorhold._store import FeatureStore
from tensorhold._tensor import Tensor
from tensorhold._values import SampleRef, TensorSpec
from tensorhold.errors import Fenced, TensorholdError, NotFound, Timeout

__all__ = ["EagleOutput", "EagleStore", "PutsFailed", "replace_mooncake_store"]

log: Final = logging.getLogger("tensorhold.torchspec")

STORED_AS: Final = torch.bfloat16
"""The element type in which hidden states are stored, whatever type they come in."""
SUFFIXES: Final = {"hidden_states": "hs", "input_ids": "ids", "target": "tgt", "last_hidden_states": "lhs"}
PUTS_AT_ONCE: Final = 4


@dataclass
class EagleOutput:
    """The result of a get: the fields of TorchSpec's ``Eagle3TargetOutput``."""

    hidden_states: torch.Tensor
    target: torch.Tensor | None
    input_ids: torch.Tensor
    last_hidden_states: torch.Tensor | None = None
    loss_mask: torch.Tensor | None = None
    input_ids_cpu: torch.Tensor | None = None

    def to_tensor_dict(self) -> dict[str, torch.Tensor]:
        """The tensors that are present, by name: the form that TorchSpec's data fetcher takes."""
        return {one.name: tensor for one in fields(self) if (tensor := getattr(self, one.name)) is not None}


class PutsFailed(RuntimeError):
    """Some puts failed; they made none of their keys visible. ``errors`` says for each key what happened."""

    def __init__(self, errors: dict[str, BaseException]) -> None:
        super().__init__(f"{len(errors)} put(s) failed: " + "; ".join(f"{key}: {error}" for key, error in errors.items()))
        self.errors = errors


class EagleStore:
    """Tensorhold's replacement for TorchSpec's ``EagleMooncakeStore``. Threads may share it; as a context manager it
    closes at the end.

    ``store`` is one of: the name of a store, opened with ``settings`` as :func:`tensorhold.open` takes them; an open
    store, which the caller remains responsible for closing; or TorchSpec's ``MooncakeConfig``, as for
    :meth:`from_config`. ``output`` makes the result of :meth:`get`: pass TorchSpec's ``Eagle3TargetOutput`` if other
    code requires that very class.
    """

    def __init__(
        self,
        store: str | FeatureStore | Any,
        *,
        output: Callable[..., Any] = EagleOutput,
        defer_removals: bool = False,
        **settings: Any,
    ) -> None:
        if isinstance(store, FeatureStore) and settings:
            raise ValueError("an open store has its settings already; pass either a store or settings, not both")
        self._asked_segment = 0
        if not isinstance(store, (str, FeatureStore)):
            self._asked_segment = int(store.global_segment_size)
            settings = merged(_of_config(store), settings_beside(settings), settings)
            settings.pop("external_sample_bytes", None)
            found = settings.pop("store", None)
            store = _store_name(settings.pop("store_id", None) or found)
        self._owned = not isinstance(store, FeatureStore)
        self._store = store if isinstance(store, FeatureStore) else open_store(store, **{**settings, "lazy": True})
        self._output = output
        self._defer = defer_removals
        self._device: torch.device | str = "cpu"
        self._lock = threading.Lock()
        self._under_way: dict[Future[None], str] = {}
        self._failed: dict[str, BaseException] = {}
        self._deferred: dict[SampleRef, None] = {}
        self._workers = ThreadPoolExecutor(PUTS_AT_ONCE, thread_name_prefix="tensorhold-put")

    @classmethod
    def from_config(cls, config: Any, *, store_id: str | None = None, **settings: Any) -> EagleStore:
        """A store from TorchSpec's ``MooncakeConfig``.

        The config names no store, so ``store_id`` or ``TENSORHOLD_STORE`` does: the same for all processes of a run, and
        different for every run. ``settings``, variables and the file of settings take precedence over the config.
        These values are taken from the config: the addresses, the protocol and its devices, ``replica_num``, and its
        buffers as the least size of the pool. Its segment is not lent (see ``_lending``), hard pins are always set, and
        tensors go through host memory.
        """
        named: dict[str, Any] = {} if store_id is None else {"store_id": store_id}
        return cls(config, **settings, **named)

    def setup(self, device: torch.device | str | int | None = None) -> None:
        """Connects; otherwise the first call does. ``device`` is where a get puts tensors by default.

        Raises if the cluster has no memory for samples.
        """
        if device is not None:
            self._device = torch.device(device)
        self._store.connect()
        if self._owned:
            check_memory(self._store, self._asked_segment, "global_segment_size", log)

    def warmup_rdma(self) -> None:
        """Writes, reads and removes a small sample, so that connections are made now and not during the first real
        sample."""
        name = f"tensorhold-warm-up-{uuid.uuid4().hex}"
        self._store.put(name, {"x": torch.zeros(1, dtype=torch.uint8)}, groups=())
        try:
            self._store.get(name)
        finally:
            self._remove(name)

    def put(
        self,
        key: str,
        hidden_states: torch.Tensor,
        input_ids: torch.Tensor,
        last_hidden_states: torch.Tensor | None,
        target: torch.Tensor | None = None,
    ) -> dict[str, dict[str, Any]]:
        """Starts to put a sample, and returns what is stored: ``shapes`` and ``dtypes`` by name. :meth:`flush` waits
        for it."""
        given = {
            "hidden_states": hidden_states.to(STORED_AS),
            "input_ids": input_ids,
            "target": None if target is None else target.to(STORED_AS),
            "last_hidden_states": None if last_hidden_states is None else last_hidden_states.to(STORED_AS),
        }
        tensors = {name: tensor.detach() for name, tensor in given.items() if tensor is not None}
        large = 2 * sum(tensor.nbytes for tensor in tensors.values()) > self._store.settings.pool_bytes
        if large:
            self._put_here(key, self._as_they_are(tensors))
        else:
            self._put_later(key, self._copied(tensors))
        return {
            "shapes": {name: tuple(tensor.shape) for name, tensor in tensors.items()},
            "dtypes": {name: tensor.dtype for name, tensor in tensors.items()},
        }

    def flush(self, *, timeout: float | None = None) -> None:
        """Waits for every put that was started here. :class:`PutsFailed` names the puts that failed since the last
        flush, and those that are still in flight at the timeout (by default twice that of the store); these may yet
        succeed.
        """
        with self._lock:
            under_way = dict(self._under_way)
        done, late = wait(under_way, timeout=2 * self._store.settings.timeout if timeout is None else timeout)
        for future in done:
            self._ended(future)  # its callback may not have run yet
        with self._lock:
            failed, self._failed = self._failed, {}
        failed.update({under_way[future]: TimeoutError("the put is still in flight") for future in late})
        if failed:
            raise PutsFailed(failed)

    def get(
        self,
        key: str,
        shapes: Mapping[str, tuple[int, ...]],
        dtypes: Mapping[str, torch.dtype] | None = None,
        device: torch.device | str | int | None = None,
    ) -> Any:
        """The tensors named in ``shapes``, exactly as they were put. KeyError if they are gone or are not of these shapes.

        Bytes that the engine does not have now are waited for until the loss grace has ended.
        """
        names = [name for name in SUFFIXES if name in shapes]

        def get_here() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
            # One call brings all of them, so no lease has to hold them together.
            wanted = [SUFFIXES[name] for name in names]
            try:
                got = get_waiting(lambda: self._store.get(key, wanted, as_="torch"))
            except NotFound as error:
                for name in names:
                    if SUFFIXES[name] == error.facts.get("tensor"):
                        raise KeyError(f"{key} was put without {name}") from error
                raise
            for name, tensor in ((name, got[SUFFIXES[name]]) for name in names):
                spec = TensorSpec(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
                self._check(key, name, spec, shapes, dtypes or {})
            return got, got[ids]

        def read_and_get() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
            with self._store.lease_shared(key) as lease:
                specs = {spec.name: spec for spec in lease.tensors}
                for name in names:
                    self._check(key, name, specs.get(SUFFIXES[name]), shapes, dtypes or {})
                wanted = [SUFFIXES[name] for name in names]
                got = get_waiting(lambda: lease.get(wanted, as_="torch", device=where))
                return got, get_waiting(lambda: lease.get([ids], as_="torch"))[ids]

        where, ids = torch.device(self._device if device is None else device), SUFFIXES["input_ids"]
        got, input_ids_cpu = again_if_fenced(get_here if where.type == "cpu" else read_and_get)
        tensors = {name: got[SUFFIXES[name]] for name in names}
        return self._output(
            hidden_states=tensors["hidden_states"],
            target=tensors.get("target"),
            input_ids=tensors["input_ids"],
            last_hidden_states=tensors.get("last_hidden_states"),
            input_ids_cpu=input_ids_cpu,
        )

    def exists(self, key: str) -> bool:
        """Whether the complete sample exists. Asking extends no lease."""
        return self._store.find([key])[0] is not None

    def remove_eagle3_tensors(self, key: str, has_last_hidden_states: bool = False, has_target: bool = False) -> None:
        """Removes a sample, for all processes. The store knows which tensors it has; the flags are only there for
        TorchSpec."""
        if not self._defer:
            self._remove(key)
            return
        self._end_puts(key)
        (found,) = self._store.find([key])
        if found is not None:
            with self._lock:
                self._deferred[found.ref] = None

    def trained(self) -> int:
        """Carries out the deferred removals: call it when the step is safe. Returns the number of samples.

        If some of them fail it raises, and only those stay deferred.
        """
        with self._lock:
            refs = list(self._deferred)
        failed: list[TensorholdError] = []
        for ref, result in zip(refs, self._store.retire_many(refs) if refs else []):
            # A sample that is gone, or that a later put has replaced, counts as removed.
            if isinstance(result, TensorholdError) and not isinstance(result, (NotFound, Fenced)):
                failed.append(result)
                continue
            with self._lock:
                self._deferred.pop(ref, None)
        if failed:
            raise failed[0]
        return len(refs)

    def close(self) -> None:
        """Waits for puts in flight, then closes the store if this object opened it. Deferred removals are not carried
        out."""
        self._workers.shutdown(wait=True)
        try:
            self.flush()
        finally:
            if self._owned:
                self._store.close()

    def __enter__(self) -> EagleStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _copied(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, Tensor | torch.Tensor]:
        """Copies into memory of the pool, which is allocated for all tensors at once."""
        filled = [tensor for tensor in tensors.values() if tensor.numel()]
        memories = iter(self._store.empty_many([(tensor.shape, tensor.dtype) for tensor in filled]))
        copied: dict[str, Tensor | torch.Tensor] = {}
        for name, tensor in tensors.items():
            if not tensor.numel():
                copied[SUFFIXES[name]] = tensor.cpu().contiguous()
                continue
            memory = next(memories)
            memory.torch().copy_(tensor)
            copied[SUFFIXES[name]] = memory
        return copied

    @staticmethod
    def _as_they_are(tensors: Mapping[str, torch.Tensor]) -> dict[str, Tensor | torch.Tensor]:
        return {SUFFIXES[name]: dense(tensor) for name, tensor in tensors.items()}

    def _put_later(self, key: str, tensors: dict[str, Any]) -> None:
        with self._lock:
            future = self._workers.submit(self._put, key, tensors, self._puts_of(key))
            self._under_way[future] = key
        future.add_done_callback(self._ended)

    def _put_here(self, key: str, tensors: dict[str, Any]) -> None:
        """Puts on the caller's thread: the tensors are the caller's memory, so Ctrl-C must be able to give up the
        put."""
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        try:
            with self._lock:
                before = self._puts_of(key)
                self._under_way[future] = key
            self._put(key, tensors, before)
        except Exception as error:
            future.set_exception(error)  # flush reports it
        finally:
            if not future.done():
                future.set_result(None)  # it was put, or the caller was interrupted and knows that it was not
            self._ended(future)

    def _put(self, key: str, tensors: dict[str, Any], before: list[Future[None]]) -> None:
        wait(before)  # none of them waits for this one, and each has a deadline
        self._store.put(key, tensors, groups=())

    def _puts_of(self, key: str) -> list[Future[None]]:
        """The puts of this key that are in flight. Call it under the lock."""
        return [future for future, of in self._under_way.items() if of == key]

    def _ended(self, future: Future[None]) -> None:
        with self._lock:
            key = self._under_way.pop(future, None)
            error = None if future.cancelled() else future.exception()
            if key is not None and error is not None:
                self._failed[key] = error

    def _end_puts(self, key: str) -> None:
        """Cancels or waits for puts in flight: one that ends later would make a removed sample live again."""
        with self._lock:
            puts = self._puts_of(key)
        begun = [future for future in puts if not future.cancel()]  # not under the lock: cancelling calls _ended
        late = wait(begun, timeout=2 * self._store.settings.timeout).not_done
        if late:
            raise Timeout("puts of this sample do not end; it is not removed, call again", operation="torchspec.remove")

    def _remove(self, key: str) -> None:
        self._end_puts(key)
        try:
            self._store.abort(key)
        except NotFound:
            pass

    @staticmethod
    def _check(key: str, name: str, spec: Any, shapes: Mapping[str, Any], dtypes: Mapping[str, torch.dtype]) -> None:
        if spec is None:
            raise KeyError(f"{key} was put without {name}")
        dtype = dtypes.get(name)
        wanted = (tuple(shapes[name]), spec.dtype if dtype is None else str(dtype).removeprefix("torch."))
        if wanted != (spec.shape, spec.dtype):
            raise KeyError(f"{key}: {name} is {spec.dtype} of {spec.shape}, not {wanted[1]} of {wanted[0]}")


def _store_name(given: str | None) -> str:
    if not given:
        raise ValueError(
            "TorchSpec's config names no store: set TENSORHOLD_STORE, the same for all processes of a run and for no other run"
        )
    return given


def _of_config(config: Any) -> dict[str, Any]:
    """Translates TorchSpec's ``MooncakeConfig`` into settings."""
    if config.enable_gpu_direct:
        log.warning("enable_gpu_direct has no effect here: tensors go through host memory")
    put_buffers = int(config.host_buffer_size or 0) * int(config.async_put_pool_size or 0)
    least_pool = int(config.local_buffer_size or 0) + put_buffers
    usual_pool = Settings.pool_bytes
    return {
        "master": config.master_server_address,
        "metadata": config.metadata_server,
        "local_hostname": config.local_hostname,
        "protocol": config.protocol,
        "pool_bytes": max(least_pool, usual_pool),
        "engine": {"devices": config.device_name},
        "features": {"replicas": config.replica_num},
    }


def replace_mooncake_store() -> None:
    """Makes TorchSpec use Tensorhold wherever it would build an ``EagleMooncakeStore``, in this process. Idempotent.

    Trainers and engines are separate processes: call it in each, with Ray by
    ``runtime_env={"worker_process_setup_hook": "tensorhold.torchspec.replace_mooncake_store"}``. They still read their
    settings for Mooncake, and in addition ``TENSORHOLD_STORE``, ``TENSORHOLD_ETCD`` and the other settings of
    ``docs/settings.md``.
    """
    from torchspec.transfer.mooncake import eagle_store  # type: ignore[import-not-found]  # not on the package index

    theirs = eagle_store.EagleMooncakeStore
    if theirs is EagleStore:
        return
    eagle_store.EagleMooncakeStore = EagleStore
    # TorchSpec's trainer and runner hold the class by name, if they were imported before.
    for name, module in list(sys.modules.items()):
        if name.startswith("torchspec.") and vars(module).get("EagleMooncakeStore") is theirs:
            module.EagleMooncakeStore = EagleStore  # type: ignore[attr-defined]
    log.info("TorchSpec's EagleMooncakeStore is replaced by Tensorhold's in this process")
