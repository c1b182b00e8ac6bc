"""The kill rig, a short form of it, and proof that it notices what it is there to notice."""

import os
from pathlib import Path

import pytest

from tests.chaos.kill import LOGS, run
from tests.chaos.ledger import Ledger, Lost, Phantom
from tests.chaos.spawn import Ended, Spawner
from tests.chaos.writer import Job, now_ms


def test_nothing_acknowledged_is_lost_when_a_writer_is_killed_again_and_again(tmp_path: Path) -> None:
    done = run(10, seed=3, parent_directory=str(tmp_path), quiet=True)
    assert done.hits["while writing"]
    assert done.acknowledged


@pytest.mark.long
def test_nothing_acknowledged_is_lost_in_two_hundred_kills(tmp_path: Path) -> None:
    done = run(200, seed=int.from_bytes(os.urandom(3), "big"), parent_directory=str(tmp_path))
    assert done.hits["in recovery"]
    assert done.hits["while writing"]
    assert done.cuts


class Scene:
    """A writer that was killed once, in the middle of its work, and its ledger."""

    def __init__(self, directory: Path, spawner: Spawner) -> None:
        self.data_dir = str(directory / "data")
        self.ledger = Ledger(LOGS)
        self._spawner = spawner
        acknowledged = 0

        def decide(kind: str, words: list[str]) -> float | None:
            nonlocal acknowledged
            self.ledger.hear(1, kind, words, now_ms())
            acknowledged += kind == "A" and words[0] == "every"
            return 0.0 if acknowledged == 5 else None

        ended = spawner.run(self._job(1, write=True), decide)
        assert ended.signal is not None

    def check(self) -> Ended:
        return self._spawner.run(
            self._job(2, write=False), lambda kind, words: self.ledger.hear(2, kind, words, now_ms())
        )

    def _job(self, life: int, *, write: bool) -> Job:
        return Job(data_dir=self.data_dir, seed="scene", life=life, logs=LOGS, write=write)


def test_the_checker_is_content_with_what_a_kill_leaves(tmp_path: Path) -> None:
    with Spawner() as spawner:
        assert Scene(tmp_path, spawner).check() == Ended(None, 0)


def test_the_checker_notices_a_lost_record(tmp_path: Path) -> None:
    with Spawner() as spawner:
        scene = Scene(tmp_path, spawner)
        for path in sorted(Path(scene.data_dir, "logs/every").glob("*.log"))[1:]:
            path.unlink()
        os.truncate(f"{scene.data_dir}/logs/every/{0:020d}.log", 100)
        with pytest.raises(Lost):
            scene.check()


def test_the_checker_notices_a_record_that_was_never_announced(tmp_path: Path) -> None:
    with Spawner() as spawner:
        scene = Scene(tmp_path, spawner)
        scene.ledger.logs["every"] = Ledger(LOGS).logs["every"]
        with pytest.raises(Phantom):
            scene.check()
