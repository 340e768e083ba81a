"""The console script ``tensorhold``. ``docs/command.md`` describes the command; ``python -m tensorhold`` is the same."""

from __future__ import annotations

import logging
import signal
import sys

from tensorhold import _events, _tensorhold

__all__ = ["main"]


def show_events() -> None:
    """Shows what Tensorhold reports on standard error, for a command that runs on."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("tensorhold").setLevel(logging.INFO)
    _events.want_levels()
    _events.start()


def main() -> int:
    """Runs the command with the arguments of this process. Returns its exit code."""
    # Python would note a Ctrl-C and wait for the command to come back.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _tensorhold.run_command(["tensorhold", *sys.argv[1:]], sys.executable)
