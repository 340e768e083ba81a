"""``python -m holdfast``: the ``holdfast`` command."""

import sys

from holdfast._command import main

if __name__ == "__main__":
    sys.exit(main())
