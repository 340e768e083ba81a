"""SpecForge's own command, with every process of the run on Holdfast.

```text
python -m holdfast.specforge train -c run.yaml …   SpecForge's command and arguments
python -m holdfast.specforge env                   a shell's line, for SpecForge's own command in that shell
```
"""

from __future__ import annotations

import os
import shlex
import sys

from holdfast.specforge._launch import environment


def main(arguments: list[str]) -> int:
    added = environment(os.environ)
    if arguments == ["env"]:
        for name, value in added.items():
            print(f"export {name}={shlex.quote(value)}")
        return 0
    from holdfast.specforge import replace_mooncake_store

    os.environ.update(added)
    replace_mooncake_store()
    from specforge.cli import main as specforge

    return int(specforge(arguments) or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
