"""`supervisorctl export` and a real job: its answer reaches the client, whatever becomes of the job."""

import sys
import threading
from pathlib import Path

import pytest

from tests.system.harness import TRAINER, Daemon, Refused


def job(folder: Path, fail: str = "", export: bool = True) -> str:
    return (
        f"[program:job]\ncommand={sys.executable} {TRAINER}\ncheckpoint_dir={folder}/c\nstandby=off\n"
        + (f"export_dir={folder}/models\n" if export else "")
        + f'environment=STEPS="100000",FAIL="{fail}"\n'
    )


def test_export_gives_the_path_that_the_job_names(tmp_path: Path) -> None:
    with Daemon(tmp_path, job(tmp_path)) as daemon:
        daemon.until_step("job", 3)
        done = daemon.call("export", name="job")

        assert done["step"] >= 3
        assert Path(done["path"]) == tmp_path / "models" / str(done["step"])
        assert Path(done["path"]).is_dir()
        assert daemon.status("job")["state"] == "RUNNING"


def test_export_of_a_job_that_dies_meanwhile_says_so(tmp_path: Path) -> None:
    with Daemon(tmp_path, job(tmp_path, fail="no-export")) as daemon:
        pid = daemon.until_step("job", 3)["pid"]
        refused: list[Refused] = []

        def ask() -> None:
            with pytest.raises(Refused) as caught:
                daemon.call("export", name="job")
            refused.append(caught.value)

        asking = threading.Thread(target=ask)
        asking.start()
        daemon.until((tmp_path / "models" / "asked").exists, "the job hears it")
        daemon.call("signal", name="job", signal="KILL")
        asking.join(20)

        assert "the worker ended" in refused[0].message
        daemon.until(lambda: daemon.status("job")["pid"] not in (None, pid), "the job is there again")


def test_export_is_refused_where_there_is_nothing_to_export(tmp_path: Path) -> None:
    with Daemon(tmp_path, job(tmp_path, export=False)) as daemon:
        daemon.until_step("job", 1)
        with pytest.raises(Refused, match="has no folder to export to; set export_dir"):
            daemon.call("export", name="job")

        daemon.write(job(tmp_path))
        daemon.call("update")
        daemon.call("stop", name="job")
        with pytest.raises(Refused, match="is not training now"):
            daemon.call("export", name="job")
