"""Events of the compiled module, in Python's ``logging``.

Each event is a record of a logger below ``tensorhold``, named after the part that reports it:
``tensorhold.features.worker``, ``tensorhold.index_etcd.session``. Its fields stand behind the message and, as a dictionary
of texts, in the record's attribute ``tensorhold``. Time, thread, file and line are those of the event.

One daemon thread of this process delivers the records, from the process's first store on. So a handler runs on that
thread, never inside a call of the store, and a slow handler delays nothing. The queue of events is bounded, and the
number of events that were dropped because it was full is logged. A forked child begins with an empty queue and its own
thread.

A change of a logger's level takes effect within :data:`LOOK_EVERY_S` seconds.
"""

from __future__ import annotations

import logging
import sys
import threading
from typing import Final

from tensorhold import _tensorhold

ROOT: Final = "tensorhold"
LOOK_EVERY_S: Final = 0.5
STOP_WITHIN_S: Final = 2.0

log: Final = logging.getLogger("tensorhold.events")


_HIGHEST_LEVEL = 2**31 - 1


class _Teller(threading.Thread):
    """The thread that delivers events."""

    def __init__(self) -> None:
        super().__init__(name="tensorhold-events", daemon=True)
        self._ending = threading.Event()

    def run(self) -> None:
        while not self._ending.is_set():
            want_levels()
            tell(LOOK_EVERY_S)
        tell(0.0)  # events that were reported while the stores closed

    def end(self, within: float) -> None:
        self._ending.set()
        _tensorhold.wake_events()
        self.join(within)


_lock = threading.Lock()
_teller: _Teller | None = None


def start() -> None:
    """Delivers events from now on, in this process. Calling it once is enough."""
    global _teller
    with _lock:
        if _teller is None:
            want_levels()
            _teller = _Teller()
            _teller.start()


def stop(within: float = STOP_WITHIN_S) -> None:
    """Delivers the remaining events, and ends; for the end of the process."""
    global _teller
    with _lock:
        teller, _teller = _teller, None
    if teller is not None:
        teller.end(within)


def in_child() -> None:
    """After a fork: the thread has stayed in the parent."""
    global _lock, _teller
    _lock = threading.Lock()
    _teller = None


def want_levels() -> None:
    """Tells the compiled module the lowest level that the loggers let through."""
    manager = logging.root.manager
    below = [one for name, one in list(manager.loggerDict.items()) if name.startswith(f"{ROOT}.")]
    loggers = [logging.getLogger(ROOT), *(one for one in below if isinstance(one, logging.Logger))]
    level = min(logger.getEffectiveLevel() for logger in loggers)
    # ``logging.disable(sys.maxsize)`` is common, but the compiled module counts in 32 bits.
    _tensorhold.want_events(min(max(0, level, manager.disable + 1), _HIGHEST_LEVEL))


def tell(within: float) -> None:
    """Waits for events and delivers them."""
    events, dropped = _tensorhold.next_events(within)
    for event in events:
        try:
            _tell(event)
        except Exception:  # from the program's filter or handler: the next event is delivered all the same
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
    if dropped:
        log.warning("%d events were dropped: they came faster than the handlers processed them", dropped)


def _tell(event: _tensorhold.Event) -> None:
    level, name, message, fields, created, thread, file, line = event
    logger = logging.getLogger(name)
    if not logger.isEnabledFor(level):
        return
    text = ", ".join(f"{field}={value}" for field, value in fields)
    message = f"{message} ({text})" if text else message
    record = logger.makeRecord(name, level, file, line, message, (), None, None, {"tensorhold": dict(fields)})
    record.relativeCreated -= (record.created - created) * 1000
    record.created, record.msecs = created, float(int(created % 1 * 1000))
    record.threadName = thread
    logger.handle(record)
