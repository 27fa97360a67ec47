"""A store that fails at any request, answers half, is slow, or refuses the credentials: nothing false comes of it.

The library's own retries are switched off, so that each fault is met; a fault lasts until the store is mended.
"""

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.host.mirror.run import MirroredRun
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.mirror import store as store_module
from supervisor.protocol.mirror.store import SILENCE_TIMEOUT, Store, StoreError
from tests.host.mirror.test_run import made
from tests.mirror.faulty_proxy import Fault, FaultyProxy, Moment
from tests.mirror.stores import ObjectStore

pytestmark = pytest.mark.integration

ERROR = b'<?xml version="1.0"?><Error><Code>%s</Code><Message>%s</Message><RequestId>1</RequestId></Error>'
EXPIRED = ERROR % (b"ExpiredToken", b"The provided token has expired.")
FAULTS: dict[str, Callable[[int], Fault]] = {
    "slow down": lambda number: Fault(
        number, Moment.BEFORE, is_lasting=True, status=503, content=ERROR % (b"SlowDown", b"")
    ),
    "expired": lambda number: Fault(number, Moment.BEFORE, is_lasting=True, status=403, content=EXPIRED),
    "cut before": lambda number: Fault(number, Moment.BEFORE, is_lasting=True),
    "cut after": lambda number: Fault(number, Moment.AFTER, is_lasting=True),
    "cut midway": lambda number: Fault(number, Moment.MIDWAY, is_lasting=True),
    "lost once": lambda number: Fault(number, Moment.AFTER),
}


@pytest.fixture
def proxy(s3_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    with FaultyProxy(s3_store.endpoint) as proxy:
        for name, value in s3_store.behind(proxy.endpoint).environment.items():
            monkeypatch.setenv(name, value)
        yield proxy


def host(url: str, folder: Path, silence_timeout: str = SILENCE_TIMEOUT) -> MirroredRun:
    return MirroredRun(Store(url, retries=0, silence_timeout=silence_timeout), folder, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("offset", "kind"), list(enumerate(FAULTS)))
def test_store_that_fails_at_any_request_loses_nothing_and_is_gone_on_with(
    offset: int, kind: str, s3_store: ObjectStore, proxy: FaultyProxy, tmp_path: Path
):
    """A host begins an epoch and uploads, another one fetches; the store fails from some request on.

    Every sixth request for each kind of fault, each time others, so that every request meets one kind; of those whose
    answer is lost once every fourth, as a round meets one of them and not all that follow.
    """
    every = 4 if kind == "lost once" else len(FAULTS)
    run, before, failures = host(s3_store.url, tmp_path / "a"), None, 0
    for at in range(1 + offset % every, 1000, every):
        name = made(tmp_path / "a", 100 * at)
        is_uploaded = is_fetched = False
        proxy.fault = FAULTS[kind](at)
        try:
            run.upload(name, run.begin_epoch(name, 0))
            is_uploaded = True
            host(s3_store.url, tmp_path / f"b{at}").fetch(None, None)
            is_fetched = True
        except StoreError as error:
            failures += 1
            assert str(error).startswith("cannot ")
        proxy.fault = None

        found = host(s3_store.url, tmp_path / f"c{at}").fetch(None, None)
        assert found.fetched == name if is_uploaded else found.fetched in (before, name)
        assert found.bad == ()
        assert not list(tmp_path.glob("*/*.partial"))
        if is_fetched:
            break
        before = name
        run.upload(name, run.begin_epoch(name, 0))  # the host goes on by itself
    assert failures > 5


def test_half_an_answer_that_looks_whole_is_no_checkpoint(s3_store: ObjectStore, proxy: FaultyProxy, tmp_path: Path):
    older, newer = made(tmp_path / "a", 100), made(tmp_path / "a", 200)
    run = host(s3_store.url, tmp_path / "a")
    epoch = run.begin_epoch(older, 0)
    run.upload(older, epoch)
    run.upload(newer, epoch)
    outcomes = list[CheckpointName | None]()
    proxy.requests.clear()
    host(s3_store.url, tmp_path / "b").fetch(None, None)
    count = len(proxy.requests)

    for at in range(1, count + 1):
        seen = itertools.count(1)
        proxy.rewrite = lambda _, content, at=at, seen=seen: (
            content[: len(content) // 2] if next(seen) == at else content
        )
        try:
            found = host(s3_store.url, tmp_path / f"c{at}").fetch(None, None)
        except StoreError:
            continue
        outcomes.append(found.fetched)
    proxy.rewrite = lambda _, content: content

    assert set(outcomes) <= {older, newer}
    assert 0 < len(outcomes) < count


def test_credentials_that_are_refused_are_named_with_the_remedy_and_taken_anew(
    s3_store: ObjectStore, proxy: FaultyProxy, tmp_path: Path
):
    run = host(s3_store.url, tmp_path / "a")
    proxy.fault = Fault(1, Moment.BEFORE, is_lasting=True, status=400, content=EXPIRED)  # S3 says it so

    with pytest.raises(StoreError) as refused:
        run.begin_epoch(None, 0)

    assert str(refused.value) == (
        "cannot list epoch/: the store answers 400 Bad Request (ExpiredToken: The provided token has expired.); "
        "renew the credentials, or let their role list, read, write and delete here"
    )


def test_store_that_does_not_answer_in_time_is_an_error(s3_store: ObjectStore, proxy: FaultyProxy, tmp_path: Path):
    name = made(tmp_path / "a", 100)
    run = host(s3_store.url, tmp_path / "a", silence_timeout="1s")
    epoch = run.begin_epoch(name, 0)
    released = threading.Event()
    proxy.fault = Fault(1, Moment.BEFORE, "^PUT .*ckpt", action=released.wait, goes_on=True)

    with pytest.raises(StoreError, match=r"timed out"):
        run.upload(name, epoch)
    released.set()

    run.upload(name, epoch)
    assert host(s3_store.url, tmp_path / "b").fetch(None, None).fetched == name


def test_error_names_no_secret_of_a_url():
    with pytest.raises(StoreError) as error, store_module._as_store_error("list epoch/"):
        raise ValueError(
            "Error performing GET https://x.example/c?sig=SECRET in 1ms, after 3 retries - HTTP error: broken pipe"
        )

    assert str(error.value) == "cannot list epoch/: https://x.example/c: HTTP error: broken pipe"


def test_upload_whose_last_answer_is_lost_is_no_checkpoint_that_is_gone(
    s3_store: ObjectStore, proxy: FaultyProxy, tmp_path: Path
):
    """The library then aborts the upload, and meets 404: the store has completed it."""
    name = made(tmp_path / "a", 100)
    run = host(s3_store.url, tmp_path / "a")
    epoch = run.begin_epoch(name, 0)
    proxy.fault = Fault(1, Moment.AFTER, matching="^POST .*uploadId=")

    with pytest.raises(StoreError, match="cannot upload"):
        run.upload(name, epoch)

    run.upload(name, epoch)
    assert host(s3_store.url, tmp_path / "b").fetch(None, None).fetched == name
