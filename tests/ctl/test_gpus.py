"""The action gpus: what it shows of an answer, and what it refuses."""

import io
import json
from typing import Any

import pytest

from supervisor.ctl.actions.base import UsageError
from supervisor.ctl.actions.gpus import gpus
from supervisor.ctl.terminal import ExitStatus, Terminal

FINE = {
    "index": 0, "uuid": "GPU-aaaa", "address": "0000:1a:00.0", "name": "H100", "used_by": ["digits", "words"],
    "state": "ok", "trouble": None, "last_fault": None, "last_fault_wall_at": None, "faults": 0, "left_out": None,
    "left_out_wall_at": None, "action": None,
}  # fmt: skip
WHY = "Xid 95: not contained"
ILL = {
    **FINE, "index": 1, "uuid": "GPU-bbbb", "used_by": [], "state": "left out", "last_fault": "Xid 95",
    "last_fault_wall_at": 1.8e9, "faults": 3, "left_out": WHY, "trouble": WHY, "action": "reset",
}  # fmt: skip
UNNAMED = {**FINE, "index": None, "uuid": "", "used_by": [], "state": "in error", "trouble": "it is not there"}


class Client:
    def __init__(self, **answer: Any) -> None:
        self.answer = {"gpus": [], "is_watched": True, "troubles": [], "acts": True, **answer}
        self.called: list[tuple[str, dict[str, Any]]] = []

    def call(self, command: str, **request: Any) -> dict[str, Any]:
        self.called.append((command, request))
        return self.answer if command == "gpus" else {"gpu": request["gpu"]}


def run(client: Client, *arguments: str, as_json: bool = False) -> str:
    out = io.StringIO()
    assert gpus(Terminal(client, out, out, as_json), list(arguments)) is ExitStatus.OK  # type: ignore[arg-type]
    return out.getvalue()


def test_a_row_says_who_uses_a_gpu_and_why_it_is_left_out() -> None:
    head, fine, ill, unnamed = run(Client(gpus=[FINE, ILL, UNNAMED])).splitlines()

    assert head.split("  ")[0] == "GPU" and "digits, words" in fine and fine.split()[0] == "0"
    assert ill.startswith("1") and "left out" in ill and ill.endswith("Xid 95: not contained (reset)")
    assert "0000:1a:00.0" in unnamed and unnamed.endswith("it is not there")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({}, "no GPU is known yet"),
        ({"is_watched": False}, "this host has no driver of NVIDIA's"),
        ({"acts": False}, "on_gpu_fault = report"),
        ({"troubles": ["NVIDIA's driver has not answered for 10 s"]}, "trouble: NVIDIA's driver has not answered"),
    ],
)
def test_what_keeps_it_from_watching_is_said(answer: dict[str, Any], words: str) -> None:
    assert words in run(Client(**answer))


def test_json_is_the_answer() -> None:
    assert json.loads(run(Client(gpus=[ILL]), as_json=True))["gpus"] == [ILL]


@pytest.mark.parametrize("arguments", [["--return", "GPU-bbbb"], ["--return=GPU-bbbb"]])
def test_a_gpu_is_returned(arguments: list[str]) -> None:
    client = Client()

    assert "GPU-bbbb: returned" in run(client, *arguments)
    assert client.called == [("gpu_return", {"gpu": "GPU-bbbb"})]


@pytest.mark.parametrize("arguments", [["x"], ["--return"], ["--return="], ["--return", "a", "b"], ["--return=a", "b"]])
def test_other_arguments_are_refused(arguments: list[str]) -> None:
    client = Client()

    with pytest.raises(UsageError):
        run(client, *arguments)
    assert client.called == []
