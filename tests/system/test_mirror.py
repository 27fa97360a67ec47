"""A host that never comes back: another one, with an empty disk, goes on from the object store."""

import contextlib
import os
import shutil
import signal
from pathlib import Path

import psutil
import pytest

from tests.host.mirror.test_run import host, made
from tests.mirror.stores import ObjectStore
from tests.reading import command_of
from tests.system.harness import Daemon, Refused, job


def mirrored(name: str, host: Path, url: str, keys: str = "", **environment: object) -> str:
    """A job with a mirror; its folder in a `file://` store is made, as an operator does."""
    folder = Path(url.removeprefix("file://"))
    if url.startswith("file://") and not folder.exists():
        (folder / name).mkdir(parents=True)
    return job(name, host, f"mirror = {url}\n{keys}", **environment)


@pytest.fixture(params=["file", "s3", "azure"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/store"
    store = request.getfixturevalue(f"{request.param}_store")
    assert isinstance(store, ObjectStore)
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    return f"{store.url}/team"


def test_a_new_host_goes_on_from_the_store(tmp_path: Path, url: str):
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    with Daemon(old, mirrored("j", old, url, STEPS=100000, EVERY=20, STEP_S=0.02)) as daemon:
        daemon.until(lambda: daemon.status("j")["job"]["mirror"]["newest_step"], "a remote checkpoint")
        remote = daemon.status("j")["job"]["mirror"]["newest_step"]
        os.kill(daemon.status("j")["pid"], signal.SIGKILL)
        daemon.die()
    shutil.rmtree(old)

    with Daemon(new, mirrored("j", new, url, STEPS=100000, EVERY=20, STEP_S=0.02)) as daemon:
        daemon.until_step("j", remote + 1)
        first = daemon.call("history", name="j", limit=10)["attempts"][-1]

    assert first["from_step"] >= remote
    assert first["attempt"] > 1


def test_the_host_that_was_replaced_stops(tmp_path: Path, url: str):
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    with Daemon(old, mirrored("j", old, url, STEPS=100000, EVERY=20, STEP_S=0.02)) as first:
        first.until(lambda: first.status("j")["job"]["mirror"]["newest_step"], "a remote checkpoint")
        with Daemon(new, mirrored("j", new, url, STEPS=100000, EVERY=20, STEP_S=0.02)) as second:
            second.until(lambda: (second.status("j")["job"]["mirror"]["epoch"] or 0) > 1, "an epoch of its own")
            failed = first.until_state("j", "FAILED")

            later = second.status("j")["job"]["mirror"]["newest_step"] + 20
            second.until_step("j", later)

    assert "has taken this run over (epoch " in failed["description"]


def test_the_next_daemon_goes_on_with_the_worker_and_its_uploads(tmp_path: Path):
    text = mirrored("j", tmp_path, f"file://{tmp_path}/store", STEPS=100000, EVERY=20, STEP_S=0.02)
    with Daemon(tmp_path, text) as daemon:
        daemon.until(lambda: daemon.status("j")["job"]["mirror"]["newest_step"], "a remote checkpoint")
        pid = daemon.status("j")["pid"]
        daemon.die()
        daemon.start()
        daemon.until(lambda: daemon.status("j")["job"]["mirror"]["newest_step"], "one more")

        assert daemon.status("j")["pid"] == pid


def test_the_next_daemon_finishes_the_upload_of_a_worker_that_it_adopts(tmp_path: Path):
    keys, store = "durable = remote", tmp_path / "store"
    with Daemon(tmp_path, mirrored("j", tmp_path, f"file://{store}", keys, STEPS=100000, EVERY=100000)) as daemon:
        daemon.until(lambda: daemon.status("j")["job"]["mirror"]["epoch"], "the first epoch")
        daemon.until_step("j", 5)
        store.rename(tmp_path / "away")
        store.write_text("a file where the folder should be")
        with pytest.raises(Refused, match="is on this host's disk but not in the mirror"):
            daemon.call("checkpoint", name="j")
        pid, (name,) = daemon.status("j")["pid"], (tmp_path / "j").glob("step-*")
        daemon.die()
        store.unlink()
        (tmp_path / "away").rename(store)
        daemon.start()
        daemon.until(lambda: list(store.rglob(f"{name.name}/MANIFEST.json")), "the upload")

        assert daemon.status("j")["pid"] == pid


@pytest.mark.slow
def test_without_store_and_checkpoints_it_waits_and_does_not_begin_anew(tmp_path: Path):
    host = tmp_path / "host"
    host.mkdir()
    blocked = tmp_path / "store"
    blocked.write_text("a file where the folder should be")
    # it has no retries: a store that can't be reached counts against none
    with Daemon(host, mirrored("j", host, f"file://{blocked}", "startretries = 0", STEPS=100, EVERY=20)) as daemon:
        daemon.until(lambda: "the store may have one" in daemon.status("j")["description"], "the reason")
        assert list((host / "j").glob("step-*")) == []

        blocked.unlink()
        daemon.until(lambda: "is not there" in daemon.status("j")["description"], "another look at the store")
        (blocked / "j").mkdir(parents=True)
        assert daemon.until_state("j", "SUCCEEDED")["job"]["attempt"] == 2, "nothing is started to look"


def test_a_new_host_goes_on_from_the_store_and_not_from_a_later_step_of_initial_checkpoint(tmp_path: Path):
    """The other job has trained on since this one began from it; its step says nothing of this one."""
    old, new, store = tmp_path / "old", tmp_path / "new", f"file://{tmp_path}/store"
    old.mkdir()
    new.mkdir()
    keys = f"initial_checkpoint = {tmp_path}/base"
    with Daemon(old, job("base", tmp_path, STEPS=20, EVERY=20)) as daemon:
        daemon.until_state("base", "SUCCEEDED")
        daemon.write(mirrored("j", old, store, keys, STEPS=100000, EVERY=20, STEP_S=0.02))
        daemon.call("update")
        daemon.until(lambda: daemon.status("j")["job"]["mirror"]["newest_step"], "a remote checkpoint")
        daemon.call("stop", name="j")
        daemon.write(job("base", tmp_path, STEPS=5000, EVERY=5000, STEP_S=0))
        daemon.call("update")
        daemon.until(lambda: [*(tmp_path / "base").glob("step-0000005000.*")], "the other job is far ahead")
    shutil.rmtree(old)

    with Daemon(new, mirrored("j", new, store, keys, STEPS=100000, EVERY=20, STEP_S=0.02)) as daemon:
        first = daemon.until_step("j", 30)["job"]

    assert int(first["restored"][5:15]) < 5000, first["restored"]


@pytest.mark.slow
def test_without_the_store_a_new_host_does_not_begin_from_initial_checkpoint(tmp_path: Path):
    host, blocked = tmp_path / "host", tmp_path / "store"
    host.mkdir()
    blocked.write_text("a file where the folder should be")
    with Daemon(host, job("base", tmp_path, STEPS=20, EVERY=20)) as daemon:
        daemon.until_state("base", "SUCCEEDED")
        daemon.write(mirrored("j", host, f"file://{blocked}", f"initial_checkpoint = {tmp_path}/base", STEPS=100))
        daemon.call("update")
        daemon.until(lambda: "the store may have one" in daemon.status("j")["description"], "the reason")
        assert list((host / "j").glob("step-*")) == []

        blocked.unlink()
        daemon.until(lambda: "is not there" in daemon.status("j")["description"], "another look at the store")
        (blocked / "j").mkdir(parents=True)
        assert daemon.until_state("j", "SUCCEEDED")["job"]["attempt"] == 2, "nothing is started to look"
        (*_, last) = daemon.call("history", name="j", limit=10)["attempts"]
    assert last["from_step"] == 20


def test_a_store_whose_checkpoints_are_all_damaged_is_no_reason_to_begin_anew(tmp_path: Path):
    store = tmp_path / "store"
    run = host(f"file://{store}/j", tmp_path / "old")
    name = made(tmp_path / "old", 20)
    run.upload(name, run.begin_epoch(name, 0))
    (store / "j" / "e0001" / str(name) / "state.json").write_bytes(b"damaged")

    with Daemon(tmp_path, mirrored("j", tmp_path, f"file://{store}", STEPS=100, EVERY=20)) as daemon:
        failed = daemon.until_state("j", "FAILED", "SUCCEEDED")

    assert (
        "the mirror has checkpoints, and none is whole: e0001/step-0000000020.a1: state.json" in failed["description"]
    )


def test_a_folder_that_was_deleted_comes_back_from_the_store(tmp_path: Path, url: str):
    with Daemon(tmp_path, mirrored("j", tmp_path, url, STEPS=100000, EVERY=20, STEP_S=0.02)) as daemon:
        daemon.until(lambda: daemon.status("j")["job"]["mirror"]["newest_step"], "a remote checkpoint")
        (tmp_path / "j").rename(tmp_path / "deleted")  # at once: the worker writes into it all the time
        remote = daemon.status("j")["job"]["mirror"]["newest_step"]
        with contextlib.suppress(ProcessLookupError):  # the missing folder may have ended it already
            os.kill(daemon.status("j")["pid"], signal.SIGKILL)

        daemon.until(lambda: daemon.status("j")["job"]["attempt"] > 1, "another attempt")
        daemon.until_step("j", remote + 1)
        attempts = daemon.call("history", name="j", limit=10)["attempts"]
        epoch = daemon.until(lambda: daemon.status("j")["job"]["mirror"]["epoch"], "the epoch of this attempt")
        pid = daemon.status("j")["pid"]
        daemon.die()
        daemon.start()  # it finds its own epoch in the store, and what the folder said of it was deleted
        daemon.until(lambda: daemon.status("j")["job"]["mirror"]["epoch"], "an epoch of the next daemon")

        assert (daemon.status("j")["pid"], daemon.status("j")["job"]["mirror"]["epoch"]) == (pid, epoch + 1)

    latest = max(attempts, key=lambda each: each["attempt"])
    assert latest["from_step"] >= remote


def test_checkpoint_of_a_durable_job_is_over_once_it_is_in_the_mirror(tmp_path: Path):
    keys, store = "durable = remote", tmp_path / "store"
    with Daemon(tmp_path, mirrored("j", tmp_path, f"file://{store}", keys, STEPS=100000, EVERY=100000)) as daemon:
        daemon.until_step("j", 5)

        done = daemon.call("checkpoint", name="j")

        assert list(store.rglob(f"{done['checkpoint']}/MANIFEST.json"))
        assert done["upload_s"] > 0
        store.rename(tmp_path / "away")
        store.write_text("a file where the folder should be")
        with pytest.raises(Refused, match="is on this host's disk but not in the mirror: cannot"):
            daemon.call("checkpoint", name="j")


def _attempt_of(daemon: Daemon, name: str) -> int:
    """0 while one daemon follows the other."""
    try:
        return int(daemon.status(name)["job"]["attempt"])
    except OSError:
        return 0


@pytest.mark.parametrize("command", ["update", "reload"])
def test_a_move_to_another_directory_waits_until_the_store_has_what_the_stop_saved(tmp_path: Path, command: str):
    section = mirrored("j", tmp_path, f"file://{tmp_path}/store", "mirror_rate_limit = 500", STEPS=100000, EVERY=100000)
    with Daemon(tmp_path, section) as daemon:
        step = daemon.until_step("j", 30) and daemon.call("checkpoint", name="j")["step"]
        daemon.until(lambda: daemon.status("j")["job"]["mirror"]["newest_step"] == step, "the store has it")
        daemon.write(section.replace(f"checkpoint_dir={tmp_path}/j", f"checkpoint_dir={tmp_path}/other"))

        attempt = daemon.status("j")["job"]["attempt"]
        daemon.call(command)

        daemon.until(lambda: _attempt_of(daemon, "j") > attempt, "it goes on")
        found = daemon.until_state("j", "RUNNING", "BACKOFF")
        assert found["job"]["restored"] is not None, found["reason"]
        assert int(found["job"]["restored"].split("-")[1].split(".")[0]) > step


def test_where_all_checkpoints_here_are_damaged_the_store_has_one(tmp_path: Path, url: str):
    with Daemon(tmp_path, mirrored("j", tmp_path, url, STEPS=100000, EVERY=20, STEP_S=0.02)) as daemon:
        daemon.until(lambda: daemon.status("j")["job"]["mirror"]["newest_step"], "a remote checkpoint")
        daemon.call("stop", name="j")
        daemon.until(lambda: daemon.status("j")["job"]["mirror"]["waits"] is None, "the last upload")
        remote = daemon.status("j")["job"]["mirror"]["newest_step"]
        for path in (tmp_path / "j").glob("step-*/*"):
            if path.name != "MANIFEST.json":
                path.write_bytes(b"damaged")
        daemon.call("start", name="j")
        attempts = daemon.call("history", name="j", limit=10)["attempts"]

    assert max(attempts, key=lambda each: each["attempt"])["from_step"] == remote


@pytest.mark.slow
@pytest.mark.parametrize("there", [500, 30])
@pytest.mark.parametrize("is_the_mirrors", [True, False])
def test_checkpoints_of_another_run_in_a_mirror_that_is_added_wait_for_an_operator(
    tmp_path: Path, is_the_mirrors: bool, there: int
):
    url, other, own = f"file://{tmp_path}/store", tmp_path / "other", tmp_path / "own"
    other.mkdir()
    own.mkdir()
    with Daemon(other, mirrored("j", other, url, STEPS=there, EVERY=there // 2)) as daemon:
        daemon.until(lambda: daemon.status("j")["job"]["mirror"]["newest_step"] == there, "the last upload")
    uploaded = set((tmp_path / "store").rglob("MANIFEST.json"))
    with Daemon(own, job("j", own, STEPS=100000, EVERY=20, STEP_S=0.02)) as daemon:
        daemon.until_step("j", 45)
        daemon.write(mirrored("j", own, url, STEPS=100000, EVERY=20, STEP_S=0.02))
        attempt = _attempt_of(daemon, "j")
        (refused,) = daemon.call("update")["actions"]
        assert (refused["action"], _attempt_of(daemon, "j")) == ("refused", attempt), "it trains on"
        assert f"is of step {there}, and nothing says that it is of the same training" in refused["text"]
        daemon.call("update", discard=True)
        failed = daemon.until_state("j", "FAILED")
        step = daemon.call("checkpoints", name="j")["checkpoints"][0]["step"]

        chosen = there if is_the_mirrors else step
        daemon.call("start", name="j", from_step=chosen)
        daemon.until_step("j", chosen + 1)
        daemon.until(lambda: daemon.status("j")["job"]["mirror"]["epoch"], "an epoch of its own")
        attempts = daemon.call("history", name="j", limit=10)["attempts"]

    assert f"the mirror's newest checkpoint is of step {there}" in failed["reason"]
    assert uploaded <= set((tmp_path / "store").rglob("MANIFEST.json"))
    for each in (there, step):
        assert f"with supervisorctl start --from-step {each} j" in failed["reason"]
    assert max(attempts, key=lambda each: each["attempt"])["from_step"] == chosen


def test_no_process_is_left_of_a_program_that_is_removed(tmp_path: Path):
    with Daemon(tmp_path, mirrored("j", tmp_path, f"file://{tmp_path}/store", STEPS=60, EVERY=20)) as daemon:
        daemon.until_state("j", "SUCCEEDED")
        daemon.until(lambda: daemon.status("j")["job"]["mirror"]["newest_step"] == 60, "the last checkpoint")
        assert daemon.process is not None
        children = psutil.Process(daemon.process.pid).children
        assert any("mirror.process" in command_of(child) for child in children())

        daemon.write("")
        daemon.call("update")

        daemon.until(lambda: not any("mirror.process" in command_of(child) for child in children()), "it has ended")
