"""How long the next upload is going to take."""

import pytest

from supervisor.core.notices.flush import SAVE_SPREAD
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
