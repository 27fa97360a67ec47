"""What programs say is shown on a terminal, and not obeyed by it."""

import os
import pty
import subprocess

import pytest

from supervisor.protocol.printable import printable
from tests.ctl.conftest import CTL
from tests.ctl.test_listing import program

pytestmark = pytest.mark.hostile

HOSTILE = "\x1b]0;owned\x07\x1b[31mred \x9b2J \u202eevil\u2066 \x7f\rover"
SHOWN = "^[]0;owned^G^[[31mred \\x9b2J \\u202eevil\\u2066 ^?^Mover"


@pytest.mark.parametrize("text", ["loss 0,5\tnaïve 漢字 👩‍🔬\r\n", "שלום", "  100 %", "a\u00a0b\u3000c", ""])
def test_other_text_stays(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize("code", [*range(0x20), *range(0x7F, 0xA0), 0x61C, *range(0x2028, 0x202F), 0x2066])
def test_each_control_character_is_shown(code: int) -> None:
    shown = printable(f"a{chr(code)}b")

    assert (shown == f"a{chr(code)}b") == (chr(code) in "\t\n")
    assert all(character.isprintable() or character in "\t\n" for character in shown)


def on_terminal(*arguments: str) -> str:
    """What the command writes to a terminal."""
    reading, writing = pty.openpty()
    with subprocess.Popen([*CTL, *arguments], stdout=writing, stderr=writing, stdin=subprocess.DEVNULL) as process:
        os.close(writing)
        content = b""
        try:
            while piece := os.read(reading, 65536):
                content += piece
        except OSError:  # the other end is closed
            pass
        process.wait(60)
    os.close(reading)
    return content.decode()


def answer_in_hostile_text(daemon) -> None:
    daemon.answers["status"] = {"programs": [program("a", description=HOSTILE)], "ledger_error": HOSTILE}
    attempt = {
        "attempt": 1, "started_wall_at": 1.7e9, "ended_wall_at": 1.7e9, "ran_s": 1.0, "from_step": 0, "to_step": 1,
        "checkpoints": 0, "lost_steps": 0, "text": HOSTILE, "cause": "crash",
        "refused": [["x", HOSTILE]], "changed": [], "older_because": None, "older_text": None,
    }  # fmt: skip
    daemon.answers["history"] = {"attempts": [attempt]}
    daemon.logs["a", "stdout"] = f"{HOSTILE}\n".encode()
    daemon.logs["supervisord", "stdout"] = f"{HOSTILE}\n".encode()


@pytest.mark.integration
@pytest.mark.parametrize("action", ["status", "history a", "tail a", "maintail"])
def test_a_terminal_gets_none(daemon, action: str) -> None:
    answer_in_hostile_text(daemon)

    seen = on_terminal("-s", daemon.url, *action.split())

    assert SHOWN in seen
    assert "\x1b" not in seen and "\x9b" not in seen and "\u202e" not in seen


@pytest.mark.integration
@pytest.mark.parametrize("action", ["status", "history a", "tail a", "maintail"])
def test_with_raw_it_gets_them_and_a_pipe_always_does(daemon, ctl, action: str) -> None:
    answer_in_hostile_text(daemon)

    assert HOSTILE in on_terminal("-s", daemon.url, *action.split(), "--raw")
    assert HOSTILE in on_terminal("-s", daemon.url, "--raw", *action.split())
    assert HOSTILE in ctl(*action.split()).out
