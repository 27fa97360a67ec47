"""Several hosts and one run in a store: hosts that come back, come by mistake, or come without the store's disk."""

import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.mirror.faulty_proxy import Fault, FaultyProxy, Moment
from tests.mirror.stores import ObjectStore
from tests.system.harness import Daemon, Refused
from tests.system.test_mirror import mirrored
from tests.waiting import wait_until

FOR_EVER = {"STEPS": 1_000_000, "STEP_S": 0.02}
NOTICED_S = 15.0
"""What the documentation promises for a host that was replaced, and for a store that does not answer."""


def hosts(folder: Path, *names: str) -> list[Path]:
    made = [folder / name for name in names]
    for each in made:
        each.mkdir()
    return made


def mirror_of(daemon: Daemon) -> dict[str, Any]:
    return dict(daemon.status("j")["job"]["mirror"])


def newest_in_mirror(daemon: Daemon) -> int:
    return int(daemon.until(lambda: mirror_of(daemon)["newest_step"], "a remote checkpoint"))


def go_down(daemon: Daemon) -> None:
    """The host loses its power: worker and daemon at once."""
    pid = daemon.status("j")["pid"]
    daemon.die()
    os.kill(pid, signal.SIGKILL)


def epochs_in(store: Path) -> list[str]:
    return sorted(path.name for path in store.glob("j/epoch/????"))


def is_removed(folder: Path) -> bool:
    """Removes a folder from which others may remove files meanwhile; whether it is gone."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


@pytest.mark.slow
@pytest.mark.parametrize("uploads", [1, 3])
def test_a_host_that_returns_with_its_disk_goes_on_from_what_its_successor_uploaded(tmp_path: Path, uploads: int):
    first, second = hosts(tmp_path, "first", "second")
    url, keys = f"file://{tmp_path}/store", "durable = remote"
    old = Daemon(first, mirrored("j", first, url, keys, EVERY=20, **FOR_EVER))
    old.start()
    newest_in_mirror(old)
    go_down(old)
    with Daemon(second, mirrored("j", second, url, keys, EVERY=100_000, **FOR_EVER)) as daemon:
        daemon.until(lambda: mirror_of(daemon)["epoch"], "an epoch of its own")
        for _ in range(uploads):
            daemon.until_step("j", daemon.status("j")["job"]["step"] + 60)
            safe = daemon.call("checkpoint", name="j")["step"]
        go_down(daemon)
    wait_until(lambda: is_removed(second))  # the logger of the killed daemon removes its socket at the same time

    with old:
        old.until(lambda: mirror_of(old)["epoch"], "an epoch of its own again")
        attempts = old.call("history", name="j", limit=20)["attempts"]

    begins = [
        attempt["from_step"] for attempt in attempts if attempt["attempt"] > 1 and attempt["from_step"] is not None
    ]
    assert begins
    assert min(begins) >= safe
    assert not list((first / "j" / "quarantine").glob(f"step-{safe:010d}*"))


@pytest.mark.slow
def test_a_store_whose_disk_is_not_there_is_waited_for_and_not_made(tmp_path: Path):
    (host,) = hosts(tmp_path, "host")
    store = tmp_path / "mnt" / "store"
    with Daemon(host, mirrored("j", host, f"s3://x/{store}").replace("s3://x/", "file://")) as daemon:
        waits = daemon.until(lambda: "is not there" in daemon.status("j")["description"] and daemon.status("j"), "why")
        assert (store.parent.exists(), list((host / "j").glob("step-*"))) == (False, [])

        store.mkdir(parents=True)
        daemon.until(
            lambda: "is empty, as a mount point" in daemon.status("j")["description"], "the mount point is there"
        )
        assert list(store.iterdir()) == []
        (store / "j").mkdir()
        assert daemon.until_state("j", "SUCCEEDED")["job"]["attempt"] == 2, "nothing is started to look"

    assert f"cannot use mirror file://{store}: {store} is not there; mount its disk" in waits["description"]
    assert waits["job"]["waits_for_storage"]


@pytest.mark.slow
def test_a_store_that_goes_away_while_the_job_trains_is_not_made_anew(tmp_path: Path):
    (host,) = hosts(tmp_path, "host")
    store = tmp_path / "store"
    with Daemon(host, mirrored("j", host, f"file://{store}", EVERY=20, **FOR_EVER)) as daemon:
        before = newest_in_mirror(daemon)
        store.rename(tmp_path / "away")

        daemon.until(lambda: "is not there" in (mirror_of(daemon)["error"] or ""), "the reason")
        daemon.until_step("j", before + 100)
        assert not store.exists()
        assert daemon.status("j")["state"] == "RUNNING"


@pytest.mark.slow
@pytest.mark.parametrize("fails", ["import", "unfit"])
def test_a_job_that_can_not_start_takes_the_run_from_nobody(tmp_path: Path, fails: str):
    """It has the name and the prefix of another one by mistake."""
    healthy, stranger = hosts(tmp_path, "healthy", "stranger")
    store, keys = tmp_path / "store", "startretries = 1"
    with Daemon(healthy, mirrored("j", healthy, f"file://{store}", EVERY=20, **FOR_EVER)) as daemon:
        newest_in_mirror(daemon)
        text = mirrored("j", stranger, f"file://{store}", keys, FAIL=fails, **FOR_EVER)
        with Daemon(stranger, text) as other:
            other.until_state("j", "FAILED")
            daemon.until_step("j", newest_in_mirror(daemon) + 100)

        assert daemon.status("j")["state"] == "RUNNING"
        assert mirror_of(daemon)["epoch"] == 1
    assert epochs_in(store) == ["0001"]


@pytest.mark.slow
def test_a_host_that_was_replaced_stops_within_seconds_although_it_uploads_nothing(tmp_path: Path):
    old, new = hosts(tmp_path, "old", "new")
    store = tmp_path / "store"
    with Daemon(old, mirrored("j", old, f"file://{store}", EVERY=100_000, **FOR_EVER)) as first:
        first.until(lambda: mirror_of(first)["epoch"], "the first epoch")
        first.until_step("j", 50)
        first.call("checkpoint", name="j")
        newest_in_mirror(first)
        with Daemon(new, mirrored("j", new, f"file://{store}", EVERY=100_000, **FOR_EVER)) as second:
            second.until((store / "j/epoch/0002").exists, "the second epoch")
            began_at = time.monotonic()
            failed = first.until_state("j", "FAILED")
            took_s = time.monotonic() - began_at
            second.until_step("j", second.status("j")["job"]["step"] + 20)

        first.call("start", name="j")  # on purpose: it takes the run back, and says so
        assert first.status("j")["state"] == "RUNNING"

    assert "has taken this run over (epoch 2)" in failed["description"]
    assert took_s < NOTICED_S
    print(f"noticed after {took_s:.1f} s")


@pytest.mark.slow
def test_what_the_earlier_host_uploads_while_the_later_one_loads_is_not_left_behind(tmp_path: Path):
    old, new = hosts(tmp_path, "old", "new")
    url = f"file://{tmp_path}/store"
    with Daemon(old, mirrored("j", old, url, "durable = remote", EVERY=100_000, **FOR_EVER)) as first:
        first.until_step("j", 20)
        first.call("checkpoint", name="j")
        with Daemon(new, mirrored("j", new, url, EVERY=100_000, LOAD_S=3, **FOR_EVER)) as second:
            second.until(lambda: list((new / "j").glob("step-*")), "it has fetched the first one")
            safe = first.call("checkpoint", name="j")["step"]
            second.until_step("j", safe + 1)
            second.until(lambda: second.status("j")["state"] == "RUNNING", "it trains")
            begins = [attempt["from_step"] for attempt in second.call("history", name="j", limit=20)["attempts"]]

    assert max(begin or 0 for begin in begins) == safe


@pytest.mark.slow
def test_a_store_that_hangs_is_said_in_status_within_seconds(tmp_path: Path, s3_store: ObjectStore):
    (host,) = hosts(tmp_path, "host")
    answers = threading.Event()
    with FaultyProxy(s3_store.endpoint) as proxy:
        text = mirrored("j", host, s3_store.url, EVERY=100_000, **FOR_EVER)
        with Daemon(host, text, environment=s3_store.behind(proxy.endpoint).environment) as daemon:
            daemon.until(lambda: mirror_of(daemon)["epoch"], "the first epoch")
            proxy.fault = Fault(1, Moment.BEFORE, is_lasting=True, action=lambda: answers.wait(60), goes_on=True)
            began_at = time.monotonic()
            daemon.until(lambda: mirror_of(daemon)["silent_s"] > 0, "it is said")
            took_s = time.monotonic() - began_at
            described = daemon.status("j")["description"]
            proxy.fault = None
            answers.set()

    assert took_s < NOTICED_S
    assert "the mirror has not answered for" in described
    print(f"said after {took_s:.1f} s")


def test_an_upload_under_way_is_shown_with_its_bytes(tmp_path: Path):
    (host,) = hosts(tmp_path, "host")
    text = mirrored("j", host, f"file://{tmp_path}/store", "mirror_rate_limit = 1B", EVERY=100_000, **FOR_EVER)
    with Daemon(host, text) as daemon:
        daemon.until(lambda: mirror_of(daemon)["epoch"], "the first epoch")
        daemon.until_step("j", 20)
        done = daemon.call("checkpoint", name="j")
        request = (
            daemon.until(lambda: (mirror_of(daemon)["request"] or {}).get("copied_bytes"), "bytes")
            and mirror_of(daemon)["request"]
        )
        described = daemon.status("j")["description"]

    assert (request["what"], request["checkpoint"]) == ("uploading", done["checkpoint"])
    assert 0 < request["copied_bytes"] <= request["size_bytes"]
    assert request["for_s"] > 0
    assert f"uploading {done['checkpoint']} for 0:00:0" in described


@pytest.mark.slow
@pytest.mark.parametrize("store", ["away", "hangs"])
def test_start_of_a_job_that_waits_for_its_store_says_so(tmp_path: Path, store: str, s3_store: ObjectStore):
    (host,) = hosts(tmp_path, "host")
    answers = threading.Event()
    with FaultyProxy(s3_store.endpoint) as proxy:
        proxy.fault = Fault(1, Moment.BEFORE, is_lasting=True, action=lambda: answers.wait(60), goes_on=True)
        url = s3_store.url if store == "hangs" else f"file:///{tmp_path.relative_to('/')}/away/store"
        text = mirrored("j", host, s3_store.url, "autostart = false", **FOR_EVER).replace(s3_store.url, url)
        with Daemon(host, text, environment=s3_store.behind(proxy.endpoint).environment) as daemon:
            began_at = time.monotonic()
            with pytest.raises(Refused) as refused:
                daemon.call("start", name="j")
            took_s = time.monotonic() - began_at
            proxy.fault = None
            answers.set()

    assert refused.value.code == "WAITING"
    assert {"away": "is not there; mount its disk", "hangs": "the mirror has not answered for"}[store] in str(
        refused.value
    )
    assert took_s < 2 * NOTICED_S  # the numbers that the store has used are asked for first


@pytest.mark.slow
def test_a_new_host_that_begins_from_scratch_without_the_store_does_not_go_on_from_it_later(tmp_path: Path):
    """Its worker dies before the store is back, so before an epoch that begins anew could be there."""
    earlier, new = hosts(tmp_path, "earlier", "new")
    store, away = tmp_path / "store", tmp_path / "away"
    with Daemon(earlier, mirrored("j", earlier, f"file://{store}", EVERY=20, **FOR_EVER)) as daemon:
        daemon.until(lambda: newest_in_mirror(daemon) >= 100, "more than the new host will have")
        daemon.call("stop", name="j")
    section = mirrored("j", new, f"file://{store}", "autostart = false", EVERY=10, **FOR_EVER)
    store.rename(away)
    with Daemon(new, section) as daemon:
        daemon.call("start", name="j", from_scratch=True)
        pid = daemon.until_step("j", 15)["pid"]
        away.rename(store)
        os.kill(pid, signal.SIGKILL)

        daemon.until(lambda: len(daemon.call("history", name="j")["attempts"]) > 1, "another attempt")
        daemon.until_step("j", 30)

        following = daemon.call("history", name="j")["attempts"][-1]
        assert following["from_step"] < 100, "from what it has saved itself"
        daemon.until(lambda: len(epochs_in(store)) == 2, "it has taken the run over")
