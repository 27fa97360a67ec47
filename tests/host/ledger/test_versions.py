"""Ledgers that earlier versions wrote: brought up to date with all that is in them, whatever happens meanwhile."""

import json
import math
import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from supervisor.host.ledger import ledger as ledger_module
from supervisor.host.ledger import migrations, schema
from supervisor.host.ledger.ledger import Ledger, LedgerError
from supervisor.protocol import durable

VERSIONS = sorted(Path(__file__).with_name("versions").glob("v*"))
OLD = pytest.mark.parametrize("version", VERSIONS, ids=lambda folder: folder.name)

RENAMED_IN_14 = {
    "idle_deaths": "deaths_without_progress",
    "ever_moved": "ever_trained",
    "before": "restore_below_step",
    "waits": "in_backoff",
    "waits_s": "backoff_left_s",
    "restoring": "from_checkpoint",
    "saved": "saved_step",
    "began_at": "start_step",
    "moved": "made_progress",
}

RENAMED_SINCE = {"started_at": "started_wall_at", "ended_at": "ended_wall_at"}


def state_of(version: Path, folder: Path) -> Path:
    """A state folder as that version left it; returns the ledger's path."""
    for name in ("ledger.sqlite3", "wanted.json"):
        shutil.copyfile(version / name, folder / name)
    return folder / "ledger.sqlite3"


def expected_of(version: Path) -> Any:
    """What the code of that version read."""
    return json.loads((version / f"read_by_{version.name}.json").read_text())


def plain(value: object) -> Any:
    """As JSON has it."""
    return json.loads(
        json.dumps(value, default=lambda each: sorted(each) if isinstance(each, frozenset) else str(each))
    )


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as shell:
        (version,) = shell.execute("PRAGMA user_version").fetchone()
        return [str(version), *shell.iterdump()]


def version_in(path: Path) -> int:
    with closing(sqlite3.connect(path)) as shell:
        return int(shell.execute("PRAGMA user_version").fetchone()[0])


def files_in(folder: Path) -> dict[str, bytes]:
    """All files, less the index of the write-ahead log, which holds nothing that is not in the log."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith("-shm")}


def set_version(path: Path, version: int) -> None:
    with closing(sqlite3.connect(path)) as shell:
        shell.execute(f"PRAGMA user_version = {version}")


def leave_in_log(path: Path, version: int) -> None:
    """Sets the version as a daemon does that is killed at once: it is in the write-ahead log alone."""
    child = os.fork()
    if child == 0:
        shell = sqlite3.connect(path, isolation_level=None)
        shell.execute("PRAGMA journal_mode = WAL")
        shell.execute(f"PRAGMA user_version = {version}")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert path.with_name(f"{path.name}-wal").stat().st_size > 0


@OLD
def test_all_that_an_earlier_version_knew_is_kept(version: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    expected, path = expected_of(version), state_of(version, tmp_path)
    monkeypatch.setattr(ledger_module, "read_boot_id", lambda: expected["boot_id"])

    with closing(Ledger(path)) as ledger:
        assert ledger.set_aside is None
        assert ledger.wanted.wanted_programs() == expected["wanted"]
        assert sorted(ledger.wanted.removed_programs()) == expected["removed"]
        assert ledger.attempts.last_attempts() == expected["last_attempts"]
        ends = {name: asdict(end) for name, end in ledger.attempts.last_ends().items()}
        assert ends.keys() == expected["last_ends"].keys()
        assert all(end | expected["last_ends"][name] == end for name, end in ends.items()), "it may tell more now"
        assert [asdict(attempt) for attempt in ledger.attempts.unfinished_attempts()] == expected["unfinished"]
        saves = {name: [save_s for save_s, _ in saves] for name, saves in ledger.checkpoints.recent_saves(5).items()}
        assert plain(saves) == expected["saves"]
        assert plain(ledger.uploads.load()) == expected["uploads"]
        for name in expected["last_attempts"]:
            assert ledger.attempts.next_microbatches(name) == expected["microbatches"][name]
            assert ledger.job_states.hang_history(name) == expected["silences"][name]
            assert plain(ledger.attempts.ended_attempts(name)) == expected["ended"][name]
            assert plain(ledger.output_begins.load(name, 1, "stdout")) == expected["output"][name]
            account = ledger.accounts.load_last(name)
            assert (None if account is None else plain(asdict(account.status))) == expected["accounts"][name]
            for record, before in zip(ledger.attempts.history(name), expected["history"][name], strict=True):
                read = plain(asdict(record))
                assert {key: read[RENAMED_SINCE.get(key, key)] for key in before} == before
            for metric, (count, last) in expected["series"][name].items():
                buckets = ledger.series.load(name).by_name[metric].buckets
                assert (len(buckets), list(asdict(buckets[-1]).values())) == (count, last)
            if expected["series"][name] == {}:
                assert ledger.series.load(name).by_name == {}


@OLD
def test_what_failures_taught_is_kept_under_its_present_names(
    version: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    expected = expected_of(version)
    monkeypatch.setattr(ledger_module, "read_boot_id", lambda: expected["boot_id"])

    with closing(Ledger(state_of(version, tmp_path))) as ledger:
        for name, state in expected["job_states"].items():
            stored = ledger.job_states.load(name)
            if state is None:
                assert stored is None
                continue
            assert stored is not None
            facts, was = plain(asdict(stored.facts)), state["facts"]
            if version.name == "v12":
                check_as_v12_had_it(ledger, name, facts, was)
            else:
                assert {key: facts[key] for key in was} == was
                assert_kept(plain(asdict(ledger.wanted.progress(name))), expected["progress"][name])
            assert (stored.digest, plain([asdict(counter) for counter in stored.counters])) == (
                state["digest"],
                state["counters"],
            )


def assert_kept(now: Any, was: Any) -> None:
    """All that there was is as it was; what has come since is not known."""
    if not isinstance(was, dict):
        assert now == was
        return
    for key, value in now.items():
        if key in was:
            assert_kept(value, was[key])
        else:
            assert value is None, key
    assert was.keys() <= now.keys()


def check_as_v12_had_it(ledger: Ledger, name: str, facts: dict[str, Any], was: dict[str, Any]) -> None:
    """Until 13 the account of progress was among them, and some had other names."""
    known, from_scratch = was.pop("known"), was.pop("from_scratch")
    assert {key: facts.pop(RENAMED_IN_14.get(key, key)) for key in was} == was
    assert (facts["older"], facts["begin_at"]) == (None, 0 if from_scratch else None)
    newest = ledger.wanted.progress(name).newest
    assert (newest is None) == (known is None)
    if newest is not None:
        assert {key: getattr(newest, key) for key in known} == known
        assert newest.name.endswith(f".a{newest.attempt}")


@OLD
def test_the_copy_is_the_earlier_ledger_for_the_daemons_user_alone(version: Path, tmp_path: Path):
    path = state_of(version, tmp_path)
    before = dump(path)

    Ledger(path).close()

    copy = tmp_path / f"ledger.sqlite3.{version.name}"
    assert dump(copy) == before
    assert copy.stat().st_mode & 0o777 == 0o600
    assert version_in(path) == schema.SCHEMA
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".")]


@OLD
def test_a_migrated_ledger_has_the_tables_of_a_new_one(version: Path, tmp_path: Path):
    path, fresh = state_of(version, tmp_path), tmp_path / "fresh" / "ledger.sqlite3"
    fresh.parent.mkdir()
    Ledger(path).close()
    Ledger(fresh).close()

    def tables(of: Path) -> dict[str, list[tuple[object, ...]]]:
        with closing(sqlite3.connect(of)) as shell:
            names = [name for (name,) in shell.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            return {name: [row[1:] for row in shell.execute(f"PRAGMA table_info({name})")] for name in names}

    assert tables(path) == tables(fresh)


def test_there_is_a_step_to_each_version_since_the_oldest():
    assert sorted(migrations.STEPS) == list(range(migrations.OLDEST + 1, schema.SCHEMA + 1))
    assert VERSIONS[0].name == f"v{migrations.OLDEST}"


def killed_at(number: int, path: Path) -> bool:
    """Opens the ledger in a process that is killed before statement or file operation `number` of the migration;
    whether it came to that."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
        return os.WIFSIGNALED(status)
    try:
        left = number

        def count(*_: object) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **keywords: Any) -> Any:
                count()
                return function(*arguments, **keywords)

            return call

        real = migrations.migrate

        def migrate(connection: sqlite3.Connection, path: Path, version: int) -> Path:
            connection.set_trace_callback(count)
            for owner, name in ((durable, "sync_file"), (durable, "sync_folder"), (Path, "replace"), (Path, "touch")):
                setattr(owner, name, counted(getattr(owner, name)))
            copy = real(connection, path, version)
            connection.set_trace_callback(None)
            count()
            return copy

        schema.migrate = migrate
        connection, _ = schema.open_or_create(path)
        connection.close()
        os._exit(0)
    finally:
        os._exit(3)


@OLD
@pytest.mark.integration
@pytest.mark.slow  # a process for each statement
def test_a_kill_at_any_moment_leaves_a_whole_ledger_that_the_next_start_finishes(version: Path, tmp_path: Path):
    reference = tmp_path / "reference"
    reference.mkdir()
    connection, _ = schema.open_or_create(state_of(version, reference))
    connection.close()
    before = dump(version / "ledger.sqlite3")
    without_revision = [line for line in dump(reference / "ledger.sqlite3") if '"revision"' not in line]
    number, seen = 0, set[int]()
    while True:
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        path = state_of(version, folder)

        was_killed = killed_at(number, path)

        seen.add(version_in(path))
        copy = folder / f"ledger.sqlite3.{version.name}"
        if version_in(path) == int(version.name[1:]):
            assert dump(path) == before
        else:
            assert dump(copy) == before, "nothing is changed before the copy is there"
        connection, moved_to = schema.open_or_create(path)
        connection.close()
        assert moved_to is None
        assert [line for line in dump(path) if '"revision"' not in line] == without_revision
        assert dump(copy) == before
        assert not [each for each in folder.iterdir() if each.name.startswith(".")]
        shutil.rmtree(folder)
        if not was_killed:
            break
    assert number > 8
    assert seen == set(range(int(version.name[1:]), schema.SCHEMA + 1)), "each step is a transaction of its own"


@OLD
@pytest.mark.integration
def test_a_disk_without_room_for_the_copy_changes_nothing_and_says_so(version: Path, small_disk: Path):
    path = state_of(version, small_disk)
    before = dump(path)

    with pytest.raises(LedgerError, match=r"cannot open the ledger .* full; make sure .* its disk has free space"):
        Ledger(path)

    assert dump(path) == before
    assert {each.name for each in small_disk.iterdir()} == {"ledger.sqlite3", "wanted.json"}
    subprocess.run(["mount", "-o", "remount,size=2m", small_disk], check=True)
    with closing(Ledger(path)) as later:
        assert later.set_aside is None
        assert later.attempts.last_attempts() == expected_of(version)["last_attempts"]


HINDERS = {
    "v12": "DROP TABLE memories",
    "v14": "CREATE TABLE proofs (program TEXT)",
    "v15": "ALTER TABLE attempts ADD COLUMN diagnosis TEXT",
}
"""By version: what makes the step after it fail."""


@OLD
def test_a_step_that_fails_says_so_and_calls_nothing_damaged(
    version: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = state_of(version, tmp_path)
    with closing(sqlite3.connect(path)) as shell, shell:
        shell.execute(HINDERS[version.name])
    before = dump(path)

    with pytest.raises(LedgerError, match=rf"cannot bring the ledger .* from version {version.name[1:]} to \d+: "):
        Ledger(path)

    assert dump(path) == before


UNKNOWN = pytest.mark.parametrize("number", [schema.SCHEMA + 1, 1_000_000, migrations.OLDEST - 1, 1, -1])


@UNKNOWN
@pytest.mark.integration
@pytest.mark.parametrize("leave", [set_version, leave_in_log])
def test_a_version_that_is_not_known_is_refused_and_not_one_byte_changes(
    number: int, leave: Callable[[Path, int], None], tmp_path: Path
):
    path = tmp_path / "ledger.sqlite3"
    with closing(Ledger(path)) as ledger:
        ledger.wanted.record_wanted("digits", True)
    leave(path, number)
    before = files_in(tmp_path)

    with pytest.raises(LedgerError) as refused:
        Ledger(path)

    reads = f"{migrations.OLDEST} to {schema.SCHEMA}"
    newer = f"a newer stepkeeper wrote it (version {number}, this one reads {reads}); install that version again"
    other = f"it has version {number}, and this stepkeeper reads {reads}; install the version that wrote it"
    assert (newer if number > schema.SCHEMA else other) in str(refused.value)
    assert files_in(tmp_path) == before


@OLD
def test_what_a_newer_version_wants_is_refused_and_not_one_byte_changes(version: Path, tmp_path: Path):
    path = state_of(version, tmp_path)
    content = {"format": 3, "programs": {"digits": True}, "removed": [], "gone": {}}
    (tmp_path / "wanted.json").write_text(json.dumps(content))
    before = files_in(tmp_path)

    with pytest.raises(
        LedgerError, match=r"newer stepkeeper wrote .*wanted.json \(format 3, this version reads up to 2"
    ):
        Ledger(path)

    assert files_in(tmp_path) == before


def test_numbers_that_are_none_cost_no_more_than_themselves(tmp_path: Path) -> None:
    """An earlier version wrote what a worker had claimed, infinity too."""
    path = state_of(VERSIONS[0], tmp_path)
    with closing(sqlite3.connect(path)) as shell:
        (program, content), *_ = shell.execute("SELECT program, content FROM memories").fetchall()
        steps = {**json.loads(content), "steps_s": [0.5, math.inf], "startup_s": math.nan, "best_step": 77}
        shell.execute("UPDATE memories SET content = ? WHERE program = ?", (json.dumps(steps), program))
        shell.commit()

    with closing(Ledger(path)) as ledger:
        state = ledger.job_states.load(program)

    assert state is not None
    assert (state.facts.best_step, state.facts.startup_s) == (77, None)
