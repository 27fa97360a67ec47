"""A rollback after a divergence gives up what came of it, and nothing that was trained since."""

from pathlib import Path

import pytest

from tests.system.harness import Daemon, job

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]


def mirrored(folder: Path, home: Path, **environment: object) -> str:
    return job("t", home, f"on_nan=rollback\nmirror=file://{folder}/store", EVERY=10, **environment)


def test_it_leaves_alone_what_another_host_has_trained_since(tmp_path: Path):
    """The job has FAILED after its rollbacks; another host went on with it, before the first one comes back."""
    homes = [tmp_path / "one", tmp_path / "other"]
    for home in (*homes, tmp_path / "store" / "t"):
        home.mkdir(parents=True)
    diverging = mirrored(tmp_path, homes[0], FAIL="nan", NAN_AT=81, STEPS=200)
    with Daemon(homes[0], diverging) as daemon:
        daemon.until_state("t", "FAILED")
        with Daemon(homes[1], mirrored(tmp_path, homes[1], STEPS=150)) as other:
            other.until_state("t", "SUCCEEDED")
            other.until(
                lambda: (other.status("t")["job"]["mirror"] or {}).get("newest_step") == 150, "it is in the store"
            )
        (homes[0] / "t" / "skip").touch()
        daemon.call("start", name="t")
        daemon.until_state("t", "SUCCEEDED")

        last = daemon.call("history", name="t")["attempts"][-1]
        assert (last["from_step"], last["older_because"]) == (150, None), last
