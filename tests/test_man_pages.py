"""The man pages say what the commands and docs/ say, and man(1) reads them without a warning."""

import shutil
import subprocess

import pytest

from man.pages import FOLDER, NAMES, page
from man.roff import blocks


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_what_its_sources_give(name: str):
    assert (FOLDER / name).read_text() == page(name), "run `make man`"


def test_text_that_looks_like_a_request_stays_text():
    written = "\n".join(blocks("a\n.so /etc/passwd\n\n```sh\n.de x\n'br \\n\n```"))

    assert [line for line in written.splitlines() if line[:1] in (".", "'")] == [
        ".PP",
        ".PP",
        ".RS 4",
        ".nf",
        ".fi",
        ".RE",
    ]
    assert "\\&.so /etc/passwd" in written and "\\en" in written


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
@pytest.mark.parametrize("name", NAMES)
def test_groff_has_no_warning(name: str):
    done = subprocess.run(
        ["groff", "-ww", "-mandoc", "-Tutf8", FOLDER / name], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
