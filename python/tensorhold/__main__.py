"""``python -m tensorhold``: the ``tensorhold`` command."""

import sys

from tensorhold._command import main

if __name__ == "__main__":
    sys.exit(main())
