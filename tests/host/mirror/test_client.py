"""The mirror process, as the daemon sees it."""

import asyncio
import os
import pwd
import shutil
import signal
from pathlib import Path

import pytest

from supervisor.host.mirror import messages
from supervisor.host.mirror.client import MirrorClient, MirrorError, RunFenced
from supervisor.host.mirror.settings import MirrorSettings
from supervisor.protocol.allocation import MAX_NODES
from supervisor.protocol.checkpoints.manifest import StoredFile
from supervisor.protocol.layout import MANIFEST
from tests.host.mirror.test_run import host, made
from tests.mirror.stores import ObjectStore
from tests.system.harness import let_others_in

pytestmark = pytest.mark.integration


def client(tmp_path: Path, user: str | None = None, bytes_per_s: float | None = None) -> MirrorClient:
    if not (tmp_path / "store").exists():
        (tmp_path / "store" / "j").mkdir(parents=True)
    settings = MirrorSettings(f"file://{tmp_path}/store", "j", tmp_path / "j", 5, bytes_per_s)
    return MirrorClient(settings, dict(os.environ), user=user)


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def mirror_processes() -> list[str]:
    """Pids of those that this process has started."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [child for child in children if b"mirror.process" in Path(f"/proc/{child}/cmdline").read_bytes()]


async def test_a_process_that_was_killed_is_started_again(tmp_path: Path):
    mirror = client(tmp_path)
    begun = await mirror.ask(messages.BeginEpochRequest(mirror.next_id(), None, 0), messages.EpochAnswer)
    assert mirror.pid is not None
    os.kill(mirror.pid, signal.SIGKILL)
    with pytest.raises(MirrorError, match="the mirror process ended"):
        for _ in range(1000):  # until the daemon has learned of it
            await mirror.ask(messages.FetchRequest(mirror.next_id(), only_look=True), messages.FetchAnswer)
            await asyncio.sleep(0.01)

    name = made(tmp_path / "j", 100)
    done = await mirror.ask(messages.UploadRequest(mirror.next_id(), str(name), begun.epoch), messages.UploadAnswer)

    assert done.remote == (str(name),)
    mirror.close()


async def test_question_right_after_a_close_is_answered_by_the_next_process(tmp_path: Path):
    mirror = client(tmp_path)
    for _ in range(3):
        await mirror.ask(messages.FetchRequest(mirror.next_id(), only_look=True), messages.FetchAnswer)
        mirror.close()
    assert mirror.pid is None


async def test_what_waits_at_a_close_is_told_why(tmp_path: Path):
    mirror = client(tmp_path)
    await mirror.ask(messages.FetchRequest(mirror.next_id(), only_look=True), messages.FetchAnswer)
    question = messages.FetchRequest(mirror.next_id(), only_look=True)
    asked = asyncio.ensure_future(mirror.ask(question, messages.FetchAnswer))
    await asyncio.sleep(0)  # until it waits
    mirror.close("the store did not answer within 30 s")

    with pytest.raises(MirrorError, match=r"^the store did not answer within 30 s$"):
        await asked


async def test_what_a_thousand_nodes_have_uploaded_reaches_the_process(tmp_path: Path):
    mirror = client(tmp_path)
    files = tuple(
        StoredFile(f"{name}-{node:05d}-of-{MAX_NODES:05d}", 1 << 40, f"xxh3_128:{node:032x}", f'"{node:032x}-10000"')
        for node in range(MAX_NODES)
        for name in ("ckpt.data", "worker.npz")
    )
    question = messages.CommitPartsRequest(mirror.next_id(), "step-0000000100.a1", 1, files)

    with pytest.raises(MirrorError) as refused:
        await mirror.ask(question, messages.UploadAnswer)

    assert refused.value.is_gone, "it was read, and there is no such checkpoint here"
    mirror.close()


async def test_a_question_that_is_too_long_is_an_error_of_the_mirror(tmp_path: Path):
    mirror = client(tmp_path)
    question = messages.FetchRequest(mirror.next_id(), unwanted=("x" * messages.MAX_LINE_BYTES,))

    with pytest.raises(MirrorError, match="cannot send FetchRequest"):
        await mirror.ask(question, messages.FetchAnswer)
    mirror.close()


async def test_two_questions_at_once_start_one_process(tmp_path: Path):
    mirror = client(tmp_path)
    first, second = messages.NewestLocalRequest(mirror.next_id()), messages.WatchRequest(mirror.next_id(), 0)
    await asyncio.gather(mirror.ask(first, messages.NewestLocalAnswer), mirror.ask(second, messages.WatchAnswer))
    pid = mirror.pid
    assert pid is not None
    mirrors = mirror_processes()

    assert mirrors == [str(pid)]
    mirror.close()


@pytest.mark.parametrize("is_lifted_before", [False, True])
async def test_the_limit_can_be_lifted_also_for_the_upload_that_is_under_way(tmp_path: Path, is_lifted_before: bool):
    mirror = client(tmp_path, bytes_per_s=0.1)  # files of a single piece take hours
    name = made(tmp_path / "j", 100)
    if is_lifted_before:
        mirror.lift_limit(True)
    epoch = (await mirror.ask(messages.BeginEpochRequest(mirror.next_id(), None, 0), messages.EpochAnswer)).epoch
    question = messages.UploadRequest(mirror.next_id(), str(name), epoch)

    upload = asyncio.create_task(mirror.ask(question, messages.UploadAnswer))
    if not is_lifted_before:
        done, _ = await asyncio.wait([upload], timeout=0.5)
        assert not done
        mirror.lift_limit(True)

    assert (await asyncio.wait_for(upload, 60.0)).remote == (str(name),)
    mirror.close()


async def test_how_far_a_copy_is_is_told_in_both_directions(tmp_path: Path):
    mirror = client(tmp_path)
    name = made(tmp_path / "j", 100)
    size = sum(path.stat().st_size for path in files_in(tmp_path / "j") if path.name != MANIFEST)
    epoch = (await mirror.ask(messages.BeginEpochRequest(mirror.next_id(), None, 0), messages.EpochAnswer)).epoch
    upload = messages.UploadRequest(mirror.next_id(), str(name), epoch)
    await mirror.ask(upload, messages.UploadAnswer)
    sent = mirror.progress
    mirror.close()
    shutil.rmtree(tmp_path / "j")
    fetch = messages.FetchRequest(mirror.next_id())
    await mirror.ask(fetch, messages.FetchAnswer)
    received = mirror.progress
    mirror.close()

    for progress, question in ((sent, upload), (received, fetch)):
        assert progress is not None
        assert (progress.id, progress.size_bytes) == (question.id, size)
        assert 0 < progress.copied_bytes < size  # the first of three files


async def test_taken_over_gone_and_unreachable_are_told_apart(tmp_path: Path):
    mirror = client(tmp_path)
    epoch = (await mirror.ask(messages.BeginEpochRequest(mirror.next_id(), None, 0), messages.EpochAnswer)).epoch
    with pytest.raises(MirrorError) as gone:
        name = "step-0000000100.a1"
        await mirror.ask(messages.UploadRequest(mirror.next_id(), name, epoch), messages.UploadAnswer)
    assert gone.value.is_gone

    host(f"file://{tmp_path}/store/j", tmp_path / "other").begin_epoch(None, epoch)
    name = made(tmp_path / "j", 200)
    with pytest.raises(RunFenced, match="has taken this run over"):
        await mirror.ask(messages.UploadRequest(mirror.next_id(), str(name), epoch), messages.UploadAnswer)

    shutil.rmtree(tmp_path / "store")
    (tmp_path / "store").write_text("a file")
    with pytest.raises(MirrorError) as failed:
        await mirror.ask(messages.FetchRequest(mirror.next_id()), messages.FetchAnswer)
    assert not failed.value.is_gone
    mirror.close()


async def test_credentials_of_a_profile_are_read_anew_after_an_error(tmp_path: Path, s3_store: ObjectStore):
    profiles = tmp_path / "credentials"
    profiles.write_text("[other]\naws_access_key_id = a\naws_secret_access_key = b\n")
    found = {name: value for name, value in s3_store.environment.items() if "KEY" not in name}
    found |= {"AWS_PROFILE": "training", "AWS_SHARED_CREDENTIALS_FILE": str(profiles)}
    mirror = MirrorClient(MirrorSettings(s3_store.url, "j", tmp_path / "j", 5), {**os.environ, **found})

    with pytest.raises(MirrorError, match=r"no credentials of AWS_PROFILE 'training'.*; correct AWS_PROFILE"):
        await mirror.ask(messages.BeginEpochRequest(mirror.next_id(), None, 0), messages.EpochAnswer)
    pid = mirror.pid
    profiles.write_text("[training]\naws_access_key_id = a\naws_secret_access_key = b\n")
    begun = await mirror.ask(messages.BeginEpochRequest(mirror.next_id(), None, 0), messages.EpochAnswer)

    assert (begun.epoch, mirror.pid) == (1, pid)
    mirror.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_the_process_has_the_rights_of_the_jobs_user(tmp_path: Path):
    let_others_in(tmp_path)
    nobody = pwd.getpwnam("nobody")
    for text in ("j", "store", "store/j"):
        (tmp_path / text).mkdir()
        os.chown(tmp_path / text, nobody.pw_uid, nobody.pw_gid)
    mirror = client(tmp_path, "nobody")

    await mirror.ask(messages.BeginEpochRequest(mirror.next_id(), None, 0), messages.EpochAnswer)
    mirror.close()

    written = files_in(tmp_path)
    assert {each.name for each in written} == {"0001", "mirror.json"}
    assert {each.stat().st_uid for each in written} == {nobody.pw_uid}


async def test_a_user_who_is_gone_is_an_error_of_the_mirror_only(tmp_path: Path):
    mirror = client(tmp_path, "no-such-user-here")

    with pytest.raises(MirrorError, match="no such user"):
        await mirror.ask(messages.FetchRequest(mirror.next_id()), messages.FetchAnswer)
