"""Programs that really die, on this machine, now: what they leave behind is diagnosed as what killed them."""

import pytest

from supervisor.core.diagnosis.diagnose import diagnose
from tests.core.diagnosis.dying import Death, deaths, die

pytestmark = pytest.mark.integration

QUICK = {
    *("value-error", "chained-from", "futures-killed", "open-files", "file-size", "segfault", "truncated-map"),
    *("killed-outside", "c-assert", "c-ill", "c-missing-library", "disk-full", "no-inodes", "read-only", "small-shm"),
    *("cgroup-oom", "cgroup-oom-child", "shell-missing"),
}
"""One of each way to die; the others are in the corpus, as recorded."""

AGAIN = [pytest.param(death, marks=[] if death.name in QUICK else pytest.mark.nightly) for death in deaths()]


@pytest.mark.parametrize("death", AGAIN, ids=lambda death: death.name)
def test_what_a_program_dies_of_is_named(death: Death):
    if death.obstacle is not None:
        pytest.skip(death.obstacle)
    evidence = die(death)

    diagnosis = diagnose(evidence)

    assert diagnosis.kind == death.kind, (diagnosis, evidence)
