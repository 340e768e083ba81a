"""Tensorhold in the place of SpecForge's Mooncake store: in this process, and in every process of a run.

SpecForge's launchers start other processes (``python -m specforge.cli``, ``torch.distributed.run``). Each of them reads
``sitecustomize`` at its start, as every Python does, and finds the one in :data:`HOOK`, because that folder is the first
in ``PYTHONPATH``. A process in which Tensorhold cannot take the store's place ends with an error: half a run in custody
is worse than none.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

log: Final = logging.getLogger("tensorhold.specforge")

HOOK: Final = Path(__file__).parent / "hook"
"""The folder with the ``sitecustomize`` that every process of a run reads."""


def replace_mooncake_store() -> None:
    """Makes SpecForge's own launchers use Tensorhold in place of ``MooncakeFeatureStore``, in this process.

    They still read their own variables (``MOONCAKE_MASTER_SERVER_ADDR``, ...). The settings of ``docs/settings.md`` are
    read in addition: ``TENSORHOLD_ETCD``, ``TENSORHOLD_ADMIN``, ``TENSORHOLD_KEY`` if the store is sealed, and every other one,
    including ``external_sample_bytes``, from its variable or from the file that ``TENSORHOLD_CONFIG`` names.

    For the processes that a launcher starts, too: ``python -m tensorhold.specforge train``.
    """
    from specforge.runtime.data_plane import mooncake_store

    from tensorhold.specforge._store import TensorholdFeatureStore

    mooncake_store.MooncakeFeatureStore = TensorholdFeatureStore
    _show_which_store()


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """What to add to the environment of a process so that it, and every process that it starts, uses Tensorhold."""
    others = [entry for entry in variables.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != str(HOOK)]
    return {"PYTHONPATH": os.pathsep.join([str(HOOK), *others])}


def _show_which_store() -> None:
    """SpecForge sets up no logging: without this, nothing would say that the run is on Tensorhold."""
    if log.hasHandlers():
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
