"""The console script ``holdfast``. ``docs/command.md`` describes the command; ``python -m holdfast`` is the same."""

from __future__ import annotations

import logging
import signal
import sys

from holdfast import _events, _holdfast

__all__ = ["main"]


def show_events() -> None:
    """Shows what Holdfast reports on standard error, for a command that runs on."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("holdfast").setLevel(logging.INFO)
    _events.want_levels()
    _events.start()


def main() -> int:
    """Runs the command with the arguments of this process. Returns its exit code."""
    # Python would note a Ctrl-C and wait for the command to come back.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _holdfast.run_command(["holdfast", *sys.argv[1:]], sys.executable)
