"""Ties stores to their process: a store is closed when the process ends, and opened anew after a fork."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

from tensorhold import _events, _tensorhold
from tensorhold._calls import Pending, Together
from tensorhold.errors import TensorholdError

log: Final = logging.getLogger("tensorhold")

CLOSE_AT_EXIT_WITHIN_S: Final = 5.0


class Closes(Protocol):
    """An object to close when the process ends."""

    def _begin_close(self, within: float) -> Pending[None] | None: ...


_open: weakref.WeakSet[Closes] = weakref.WeakSet()
_knows_worker = False
lock = threading.RLock()
"""Held while a store opens itself. A forked child gets a new lock: no thread is left there to release this one."""


def remember(store: Closes) -> None:
    """Closes a store at the end of this process, unless it is gone by then."""
    global _knows_worker
    _open.add(store)
    processes = sys.modules.get("multiprocessing.process")
    # A worker of multiprocessing ends without running atexit handlers.
    if processes is not None and not _knows_worker and processes.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, _at_end_of_worker, exitpriority=0)
        _knows_worker = True


def forget(store: Closes) -> None:
    """Forgets a store that was closed."""
    _open.discard(store)


def _close_all() -> None:
    def tell(outcomes: Sequence[TensorholdError | None]) -> None:
        for error in filter(None, outcomes):
            log.warning("a store did not close cleanly at exit: %s", error)

    # At the same time: one that does not answer leaves the others their time.
    Together([partial(store._begin_close, CLOSE_AT_EXIT_WITHIN_S) for store in _open], tell).wait()


def _at_end_of_worker() -> None:
    _close_all()
    _events.stop()


def _at_exit() -> None:
    _close_all()
    _events.stop()
    if not _tensorhold.finish(CLOSE_AT_EXIT_WITHIN_S):
        # If it returns while the interpreter ends, CPython ends its thread, and the C library aborts. Otherwise an exit
        # handler of the compiled module ends the process before the engine's library destroys what the call uses.
        log.warning("a call of the engine's has not returned; this process ends without the exit handlers of libraries")


def _in_child() -> None:
    global lock, _knows_worker
    lock = threading.RLock()
    _knows_worker = False
    _open.clear()
    _tensorhold.after_fork()
    _events.in_child()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_in_child)
