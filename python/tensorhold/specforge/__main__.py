"""SpecForge's own command, with every process of the run on Tensorhold.

```text
python -m tensorhold.specforge train -c run.yaml …   SpecForge's command and arguments
python -m tensorhold.specforge env                   a shell's line, for SpecForge's own command in that shell
```
"""

from __future__ import annotations

import os
import shlex
import sys
from typing import Any

from tensorhold.specforge._launch import environment


def main(arguments: list[str]) -> int:
    added = environment(os.environ)
    if arguments == ["env"]:
        for name, value in added.items():
            print(f"export {name}={shlex.quote(value)}")
        return 0
    from tensorhold.specforge import replace_mooncake_store

    os.environ.update(added)
    replace_mooncake_store()
    from specforge import cli

    refuse_runs_without_mooncake(cli)
    return int(cli.main(arguments) or 0)


def refuse_runs_without_mooncake(cli: Any) -> None:
    """By SpecForge's defaults a run has no Mooncake store, and nothing would say that Tensorhold is in the place of none."""
    load = cli.load_config

    def checked(*arguments: Any) -> Any:
        config = load(*arguments)
        where = config.deployment.disaggregated
        if where is None or where.backend != "mooncake":
            sys.exit(
                "this run keeps no samples in Mooncake, so there is nothing for Tensorhold to keep: set deployment.mode to "
                "disaggregated and deployment.disaggregated.backend to mooncake (docs/specforge.md), or run specforge train"
            )
        return config

    cli.load_config = checked


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
