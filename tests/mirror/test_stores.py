"""The emulators do what commits rest on, as a client sees it that is not ours."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, PermissionDeniedError, UnauthenticatedError
from obstore.store import from_url

from tests.mirror.stores import ObjectStore, find_azurite
from tests.places import ROOT

pytestmark = pytest.mark.integration


@pytest.fixture(params=["s3_store", "azure_store"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """Each kind of store, with its credentials in this process's environment."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, ObjectStore)
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    return found


def keys(client: object) -> list[str]:
    return sorted(each["path"] for batch in obstore.list(client) for each in batch)


def test_a_store_begins_empty(store: ObjectStore):
    assert keys(from_url(store.url)) == []


def test_keys_are_below_the_prefix_of_the_url(store: ObjectStore):
    obstore.put(from_url(f"{store.url}/prefix/run"), "epoch/0001", b"1")

    assert keys(from_url(store.url)) == ["prefix/run/epoch/0001"]


def test_creating_what_exists_is_refused(store: ObjectStore):
    client = from_url(store.url)
    obstore.put(client, "manifest", b"first", mode="create")

    with pytest.raises(AlreadyExistsError):
        obstore.put(client, "manifest", b"second", mode="create")
    assert bytes(obstore.get(client, "manifest").bytes()) == b"first"


def test_of_eight_that_create_at_once_one_wins(store: ObjectStore):
    client = from_url(store.url)

    def create(number: int) -> int | None:
        try:
            obstore.put(client, "epoch/0001", str(number).encode(), mode="create")
        except AlreadyExistsError:
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        winners = [each for each in pool.map(create, range(8)) if each is not None]

    assert [bytes(obstore.get(client, "epoch/0001").bytes())] == [str(winner).encode() for winner in winners]


def test_a_large_object_comes_back_as_it_was(store: ObjectStore, tmp_path: Path):
    content = bytes(range(256)) * (48 << 10)  # 12 MiB, three parts
    (tmp_path / "data").write_bytes(content)
    client = from_url(store.url)

    obstore.put(client, "data", tmp_path / "data", chunk_size=5 << 20)

    assert bytes(obstore.get(client, "data").bytes()) == content


def test_azurite_refuses_a_wrong_key(azure_store: ObjectStore, monkeypatch: pytest.MonkeyPatch):
    for name, value in azure_store.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "d3Jvbmc=")

    with pytest.raises((PermissionDeniedError, UnauthenticatedError)):
        obstore.put(from_url(azure_store.url), "key", b"")


def test_azurite_is_found_where_make_azurite_puts_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    installed = ROOT / ".venv" / "azurite"
    if not installed.exists():
        pytest.skip("needs make azurite")

    assert find_azurite() == str(installed / "node_modules" / ".bin" / "azurite-blob")
