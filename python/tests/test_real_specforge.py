"""SpecForge's own command, on a CPU, with Tensorhold in place: the two shortest runs. All: ``cargo xtask real specforge``."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("specforge", reason="a real specforge train")

from real import processes, specforge, specforge_assets
from servers import Cluster


def test_training_on_tensorhold_has_the_same_losses(cluster: Cluster, tmp_path: Path) -> None:
    folder = specforge_assets.make(tmp_path / "assets", 16)
    logs = {module: tmp_path / f"{module}.log" for module in (specforge.PLAIN, specforge.TENSORHOLD)}
    for module, log in logs.items():
        run = specforge.Run(folder, f"{tmp_path.name}-{module}", cluster)
        assert run.train(log, module) == 0, processes.end_of(log)
    plain, held = (specforge.losses(log) for log in logs.values())
    assert len(plain) == 8 and plain == held
    assert len(specforge.on_tensorhold(logs[specforge.TENSORHOLD])) == 2, "producer and trainer"
    assert specforge.on_tensorhold(logs[specforge.PLAIN]) == []


def test_a_trainer_on_the_other_store_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    folder = specforge_assets.make(tmp_path / "assets", 8)
    run = specforge.Run(folder, f"{tmp_path.name}-mixed", cluster)
    producing, consuming = tmp_path / "producer.log", tmp_path / "consumer.log"
    with (
        run.started(producing, specforge.TENSORHOLD, "producer"),
        run.started(consuming, specforge.PLAIN, "consumer") as consumer,
    ):
        assert specforge.ended(consumer, consuming) != 0
    assert "python -m tensorhold.specforge" in processes.logged(consuming)
    assert specforge.losses(consuming) == {}
