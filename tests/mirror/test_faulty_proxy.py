"""The proxy fails exactly what it is told to, at the moment it is told to, and changes nothing else."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import ObjectStore as Client
from obstore.store import from_url

from tests.mirror.faulty_proxy import Fault, FaultyProxy, Moment
from tests.mirror.stores import ObjectStore
from tests.waiting import TIMEOUT_S, wait_until

pytestmark = pytest.mark.integration

NO_RETRY = {"max_retries": 0}
PARTS = 3
CONTENT = bytes(range(256)) * (44 << 10)  # 11 MiB, three parts
PART_BYTES = 5 << 20  # S3 takes no smaller ones
UPLOAD = f"""
import sys, obstore
from obstore.store import from_url
obstore.put(from_url(sys.argv[1]), sys.argv[2], open(sys.argv[3], "rb"), chunk_size={PART_BYTES}, max_concurrency=1)
"""


@pytest.fixture(params=["s3_store", "azure_store"])
def store(request: pytest.FixtureRequest) -> ObjectStore:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, ObjectStore)
    return found


@pytest.fixture
def proxy(store: ObjectStore) -> Iterator[FaultyProxy]:
    with FaultyProxy(store.endpoint) as proxy:
        yield proxy


def client_of(store: ObjectStore, monkeypatch: pytest.MonkeyPatch, **options: object) -> Client:
    """obstore reads the environment when it is made, so that several clients can have different addresses."""
    with monkeypatch.context() as context:
        for name, value in store.environment.items():
            context.setenv(name, value)
        return from_url(store.url, **options)  # type: ignore[arg-type]


@pytest.fixture
def direct(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A client without the proxy."""
    return client_of(store, monkeypatch)


@pytest.fixture
def client(store: ObjectStore, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A client behind the proxy that tries everything once."""
    return client_of(store.behind(proxy.endpoint), monkeypatch, retry_config=NO_RETRY)


def keys(client: Client) -> list[str]:
    return sorted(each["path"] for batch in obstore.list(client) for each in batch)


def test_without_a_fault_everything_is_forwarded(client: Client, direct: Client, proxy: FaultyProxy):
    obstore.put(client, "a b/ü%2F+", CONTENT, chunk_size=PART_BYTES)
    assert keys(client) == keys(direct) == ["a b/ü%2F+"]
    assert bytes(obstore.get(client, "a b/ü%2F+").bytes()) == CONTENT
    assert obstore.head(client, "a b/ü%2F+")["size"] == len(CONTENT)
    with pytest.raises(AlreadyExistsError):
        obstore.put(client, "a b/ü%2F+", b"", mode="create")
    with pytest.raises(FileNotFoundError):
        obstore.head(client, "other")
    obstore.delete(client, "a b/ü%2F+")

    assert keys(direct) == []
    assert [request.split()[0] for request in proxy.requests].count("HEAD") >= 2


def test_a_request_cut_before_the_store_changes_nothing(client: Client, direct: Client, proxy: FaultyProxy):
    proxy.fault = Fault(1, Moment.BEFORE)

    with pytest.raises(BaseError):
        obstore.put(client, "key", b"content")
    assert keys(direct) == []


def test_a_request_whose_answer_is_lost_is_done(client: Client, direct: Client, proxy: FaultyProxy):
    proxy.fault = Fault(1, Moment.AFTER)

    with pytest.raises(BaseError):
        obstore.put(client, "key", b"content")
    assert keys(direct) == ["key"]


def test_a_download_cut_midway_fails(client: Client, direct: Client, proxy: FaultyProxy):
    obstore.put(direct, "key", CONTENT)
    proxy.fault = Fault(1, Moment.MIDWAY, matching="^GET")
    received = 0

    with pytest.raises((BaseError, OSError)):
        for piece in obstore.get(client, "key").stream(min_chunk_size=1):
            received += len(piece)
    assert 0 < received <= len(CONTENT) // 2


def test_a_single_fault_is_over_at_the_next_request(
    store: ObjectStore, direct: Client, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
):
    retrying = client_of(store.behind(proxy.endpoint), monkeypatch)
    proxy.fault = Fault(1, Moment.BEFORE)

    obstore.put(retrying, "key", b"content")

    assert keys(direct) == ["key"]
    assert len(proxy.requests) == 2


def test_a_lasting_fault_begins_at_its_number(client: Client, proxy: FaultyProxy):
    proxy.fault = Fault(2, Moment.BEFORE, matching="^PUT .*key", is_lasting=True, status=403, content=b"ExpiredToken")
    obstore.put(client, "key", b"content")
    obstore.put(client, "other", b"content")

    for _ in range(2):
        with pytest.raises(BaseError, match="ExpiredToken"):
            obstore.put(client, "key", b"content")
    assert keys(client) == ["key", "other"]


def test_an_action_can_hold_a_request_while_others_pass(client: Client, direct: Client, proxy: FaultyProxy):
    held, released = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        released.wait(TIMEOUT_S)

    proxy.fault = Fault(1, Moment.BEFORE, matching="^PUT .*MANIFEST", action=hold, goes_on=True)
    late = threading.Thread(target=obstore.put, args=(client, "e1/MANIFEST.json", b"late"))
    late.start()
    wait_until(held.is_set, "the request is held")
    obstore.put(client, "epoch/0002", b"")
    seen_before = keys(client)
    released.set()
    late.join()

    assert seen_before == ["epoch/0002"]
    assert keys(direct) == ["e1/MANIFEST.json", "epoch/0002"]


def test_a_list_can_lie(client: Client, direct: Client, proxy: FaultyProxy):
    obstore.put(direct, "epoch/0001", b"")
    obstore.put(direct, "epoch/0002", b"")
    proxy.rewrite = lambda line, content: content.replace(b"0002", b"0001") if "list" in line else content

    assert keys(client) == ["epoch/0001", "epoch/0001"]
    assert keys(direct) == ["epoch/0001", "epoch/0002"]


def test_a_slow_store_exceeds_the_time_limit_of_its_client(
    store: ObjectStore, direct: Client, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
):
    impatient = client_of(
        store.behind(proxy.endpoint),
        monkeypatch,
        retry_config=NO_RETRY,
        client_options={"timeout": "2s", "allow_http": True},
    )
    proxy.bytes_per_s = 1.0  # twelve minutes

    with pytest.raises(BaseError, match="TimedOut"):
        obstore.put(impatient, "key", b"content" * 100)
    assert keys(direct) == []


@pytest.mark.slow
@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_a_client_killed_at_any_request_leaves_all_or_nothing(
    store: ObjectStore, direct: Client, proxy: FaultyProxy, moment: Moment, tmp_path: Path
):
    (tmp_path / "data").write_bytes(CONTENT)

    def upload(key: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", UPLOAD, store.url, key, str(tmp_path / "data")]
        return subprocess.Popen(command, env={**os.environ, **store.behind(proxy.endpoint).environment})

    assert upload("undisturbed").wait(TIMEOUT_S) == 0
    count = len(proxy.requests)
    started: list[subprocess.Popen[bytes]] = []
    for number in range(1, count + 1):
        proxy.fault = Fault(number, moment, action=lambda number=number: kill(started, number))
        started.append(upload(f"killed-{number}"))
        assert started[-1].wait(TIMEOUT_S) == -signal.SIGKILL

    assert count > PARTS
    assert keys(direct) == ([] if moment is Moment.BEFORE else [f"killed-{count}"]) + ["undisturbed"]
    assert {bytes(obstore.get(direct, key).bytes()) == CONTENT for key in keys(direct)} == {True}


def kill(started: list[subprocess.Popen[bytes]], number: int) -> None:
    wait_until(lambda: len(started) == number, "the test knows the process")
    started[-1].kill()
