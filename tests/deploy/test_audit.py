"""The audit of locked packages fails for what can be mended in an installation, and for nothing else."""

import json
import socket
from pathlib import Path

import pytest

from tests import audit

FIXED = {"name": "h11", "version": "0.14", "vulns": [{"id": "CVE-1", "fix_versions": ["0.16"]}]}
UNFIXED = {"name": "rich", "version": "14", "vulns": [{"id": "CVE-2", "fix_versions": []}]}
UNKNOWN = {"name": "own", "skip_reason": "not on PyPI"}


def report(*packages: dict[str, object]) -> str:
    return json.dumps({"dependencies": packages, "fixes": []})


def test_what_is_installed_and_has_a_fix_is_an_error_and_the_rest_is_said() -> None:
    fixed, skipped = audit.findings_in(report(FIXED, UNFIXED, UNKNOWN))
    unfixed, _ = audit.findings_in(report(UNFIXED))

    assert skipped == ["own"]
    assert audit.judge("install.txt", fixed) == (
        [
            "install.txt: h11 0.14: CVE-1; fixed in 0.16; run make lock",
            "install.txt: rich 14: CVE-2; there is no fix yet",
        ],
        True,
    )
    assert audit.judge("dev.txt", fixed)[1] is False
    assert audit.judge("install.txt", unfixed)[1] is False


def test_a_network_that_is_down_slow_or_a_mirror_skips_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mirror.json").write_text('{"info": {}}')
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        for url in (f"http://127.0.0.1:{port}/", "http://127.0.0.1:1/", f"file://{tmp_path}/mirror.json"):
            with pytest.raises(audit.NotPossible):
                audit.probe(url, timeout_s=0.2)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"dependencies": [{"name": "own", "skip_reason": "not on PyPI"}]}',
        '{"dependencies": 3}',
        '{"dependencies": [{}]}',
    ],
)
def test_a_report_of_another_form_or_about_nothing_skips_it(text: str) -> None:
    with pytest.raises(audit.NotPossible):
        audit.findings_in(text)
