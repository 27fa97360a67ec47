"""How long the next upload is going to take."""

from contextlib import closing
from pathlib import Path

import pytest

from supervisor.core.notices.flush import RECENT_COUNT, SAVE_SPREAD
from supervisor.host.ledger.ledger import Ledger
from supervisor.runner.records.uploads import UploadDurations


def test_a_limited_upload_counts_only_until_one_was_measured_without_the_limit():
    uploads = UploadDurations()
    uploads.record_upload("a", 60.0, 100.0, is_limited=True)
    assert uploads.expected_s({"a"}) == {"a": 60.0 * SAVE_SPREAD}

    uploads.record_upload("a", 5.0, 200.0, is_limited=False)
    uploads.record_upload("a", 60.0, 300.0, is_limited=True)

    assert uploads.expected_s({"a"}) == {"a": pytest.approx(5.0 * SAVE_SPREAD)}


def test_all_jobs_share_the_way_to_the_stores():
    uploads = UploadDurations()
    uploads.record_upload("a", 10.0, 100.0, is_limited=False)
    uploads.record_upload("b", 10.0, 200.0, is_limited=False)

    assert uploads.expected_s({"a", "b"})["a"] == pytest.approx(20.0 * SAVE_SPREAD)
    assert uploads.expected_s({"a"})["a"] == pytest.approx(10.0 * SAVE_SPREAD)


def test_the_next_daemon_expects_what_the_last_uploads_took(tmp_path: Path):
    with closing(Ledger(tmp_path / "ledger.sqlite3")) as ledger:
        uploads = UploadDurations()
        uploads.load_history(ledger)
        uploads.record_upload("a", 99.0, 100.0, is_limited=False)
        for number in range(RECENT_COUNT):
            uploads.record_upload("a", 5.0, 200.0 + 10 * number, is_limited=False)
        uploads.record_upload("a", 60.0, 900.0, is_limited=True)
        uploads.record_upload("b", 7.0, 1000.0, is_limited=True)

    with closing(Ledger(tmp_path / "ledger.sqlite3")) as ledger:
        after = UploadDurations()
        after.load_history(ledger)

    assert after.expected_s({"a"}) == uploads.expected_s({"a"})
    assert after.expected_s({"a"})["a"] == pytest.approx(5.0 * SAVE_SPREAD)
