"""The blocking face: a store whose calls wait for their result."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any

from tensorhold import _events, _tensorhold, _process
from tensorhold._blocking import Lease, StoreCalls
from tensorhold._calls import Pending
from tensorhold._settings import Settings, warn_about_budget
from tensorhold.errors import Unavailable

__all__ = ["FeatureStore", "Lease"]


class FeatureStore(StoreCalls):
    """Samples of tensors, kept until every group has acknowledged them. Open one with :func:`tensorhold.open`; as a context manager it closes at the end.

    Threads may share it. Every call takes a ``timeout`` in seconds; the default is the store's setting. A store can be
    pickled and may cross a fork: in the other process it opens itself anew at its first call. That is impossible in a
    child that was forked after its parent had used the engine; the call then raises and says what to do.
    """

    def __init__(self, settings: Settings, *, client: object | None = None) -> None:
        super().__init__(settings, client)

    def __reduce__(self) -> Any:
        if self._client is not None:
            raise TypeError("a store over a client of the caller cannot be pickled; open another store there")
        return FeatureStore, (self._settings,)

    def connect(self) -> _tensorhold.Core:
        """Opens the store, unless it is already open in this process. Every call does so by itself."""
        native = self._native
        if native is not None and self._pid == os.getpid():
            return native
        with _process.lock:
            if self._native is not None and self._pid == os.getpid():
                return self._native
            if self._closed:
                raise Unavailable("this store is closed; open another", operation="python.store")
            settings = self._settings
            _events.start()
            self._native = _tensorhold.open_store(
                settings.to_json(), self._client, settings.timeout, settings.native_keys(), settings.native_secrets()
            ).wait()
            self._pid = os.getpid()
            _process.remember(self)
            warn_about_budget(self.name, settings.budget, self._native.budget())
            return self._native

    def _core(self) -> _tensorhold.Core:
        return self.connect()

    def close(self, *, timeout: float | None = None) -> None:
        """Ends this process's membership: ends the calls that wait (they raise :class:`Unavailable`), waits for those whose
        bytes move, and frees what was retired here. Idempotent."""
        closing = self._begin_close(self._calls.within(timeout))
        if closing is not None:
            closing.wait()

    def _begin_close(self, within: float) -> Pending[None] | None:
        self._closed = True
        native, self._native = self._native, None
        _process.forget(self)
        if native is None or self._pid != os.getpid():
            return None
        return Pending(native.close(within), lambda nothing: None)

    def __enter__(self) -> FeatureStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
