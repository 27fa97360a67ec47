"""The page of several hosts, as a browser asks for it: only who knows the secret, and no host holds up another."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from supervisor.ctl import hosts_page
from supervisor.ctl.client import Unreachable
from supervisor.ctl.hosts import Host
from supervisor.ctl.main import main
from tests.ctl.daemon_end import DaemonEnd, program
from tests.waiting import wait_until

FIRST, SECOND = Host("first", "http://first:9001/"), Host("second", "unix:///run/second.sock")


@contextmanager
def served(watch: hosts_page.Watch) -> Iterator[hosts_page.HostsPage]:
    with hosts_page.HostsPage(watch) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))  # looks for its end so often
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def get(url: str, path: str, secret: str | None = None) -> tuple[int, bytes]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=10)
    headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


def look(watch: hosts_page.Watch) -> dict[str, dict[str, Any]]:
    return {host["name"]: host for host in json.loads(watch.look())["hosts"]}


def watch_of(answers: dict[Host, Callable[[], dict[str, Any]]]) -> hosts_page.Watch:
    return hosts_page.Watch(list(answers), lambda host: answers[host](), every_s=0.01)


def test_a_host_that_hangs_delays_no_other_and_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hosts_page, "ANSWERS_WITHIN_S", 0.2)
    end = threading.Event()
    watch = watch_of({FIRST: lambda: {"programs": [program("web")]}, SECOND: lambda: {"programs": [end.wait(60)]}})

    wait_until(lambda: look(watch)["first"]["programs"] is not None, "the one that answers")
    wait_until(lambda: look(watch)["second"]["error"] == "no answer within 0.2 s", "the other is named")
    assert [one["name"] for one in look(watch)["first"]["programs"]] == ["web"]
    assert (look(watch)["first"]["url"], look(watch)["second"]["url"]) == ("http://first:9001", None)
    end.set()


@pytest.mark.parametrize(
    "answer",
    [
        {}, {"programs": None}, {"programs": [7]}, {"programs": [{"name": 7, "wire_state": "RUNNING"}]},
        {"programs": [program("web", job=3)]}, {"programs": [program("web", exit_code=float("nan"))]},
    ],
)  # fmt: skip
def test_an_answer_that_would_hide_the_others_is_an_error_of_its_host(answer: dict[str, Any]):
    watch = watch_of({FIRST: lambda: answer, SECOND: lambda: {"programs": [program("web")]}})

    wait_until(lambda: look(watch)["first"]["error"], "an error")
    assert look(watch)["first"]["error"].startswith("the answer can't be understood: ")
    wait_until(lambda: look(watch)["second"]["programs"], "the other one")


def test_a_host_that_comes_back_is_shown_again():
    failures = [Unreachable("refused connection")]

    def answer() -> dict[str, Any]:
        if failures:
            raise failures[0]
        return {"programs": [], "ledger_error": "disk full", "hooks_error": None}

    watch = watch_of({FIRST: answer})
    wait_until(lambda: look(watch)["first"]["error"] == "refused connection", "the error")
    failures.clear()
    wait_until(lambda: look(watch)["first"]["programs"] == [], "its programs")
    assert look(watch)["first"]["trouble"] == "disk full"


def test_no_host_is_asked_while_no_page_looks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hosts_page, "SHOWN_FOR_S", 0.1)
    asked: list[float] = []

    def answer() -> dict[str, Any]:
        asked.append(time.monotonic())
        return {"programs": []}

    watch = watch_of({FIRST: answer})
    assert asked == []
    looked_at = time.monotonic()
    look(watch)
    wait_until(lambda: time.monotonic() > looked_at + 1.0, "a second after the last look")
    assert asked
    assert max(asked) < looked_at + 0.9


def test_only_who_knows_the_secret_sees_the_hosts():
    with served(watch_of({FIRST: lambda: {"programs": []}})) as server:
        assert get(server.url, "/hosts.json")[0] == 403
        assert get(server.url, "/hosts.json", "")[0] == 403
        assert get(server.url, "/hosts.json", server.secret[:-1])[0] == 403
        assert get(server.url, "/hosts.json", "\xff" * 8)[0] == 403
        status, content = get(server.url, "/hosts.json", server.secret)
    assert (status, [host["name"] for host in json.loads(content)["hosts"]]) == (200, ["first"])
    assert server.secret not in "".join(file.content.decode() for file in server.files.values())


@pytest.mark.parametrize("path", ["/page/../hosts_page.py", "/page/__init__.py", "/hosts.json/", "/page/"])
def test_nothing_but_the_pages_files_is_served(path: str):
    with served(watch_of({})) as server:
        assert get(server.url, path) == (404, b"")
        assert get(server.url, "/")[0] == get(server.url, "/page/hosts.js")[0] == 200


@pytest.mark.parametrize(
    "words", [["7"], ["--port"], ["--port", "0"], ["--port=70000"], ["--port", "\u0661"], ["-x", "1"]]
)
def test_a_bad_port_is_refused_with_the_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]):
    (tmp_path / "hosts").write_text("gpu-1\n")

    assert main(["--hosts", str(tmp_path / "hosts"), "page", *words]) == 1
    assert "page --port NUMBER" in capsys.readouterr().out


@pytest.mark.integration
def test_the_command_shows_the_hosts_of_the_file_until_it_is_interrupted(tmp_path: Path):
    with DaemonEnd(tmp_path / "a.sock") as first, DaemonEnd(tmp_path / "b.sock") as second:
        (tmp_path / "hosts").write_text(f"first {first.url}\nsecond {second.url}\n")
        first.login = second.login = "ops:secret"
        first.answers["status"] = second.answers["status"] = {"programs": [program("web")]}
        command = [sys.executable, "-m", "supervisor.ctl.main", "--hosts", str(tmp_path / "hosts"), "-u", "ops"]
        with subprocess.Popen([*command, "-p", "secret", "page"], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            secret = urlsplit(url).fragment

            def shown() -> list[Any]:
                hosts = json.loads(get(url, "/hosts.json", secret)[1])["hosts"]
                return [(host["name"], [one["name"] for one in host["programs"] or []]) for host in hosts]

            wait_until(lambda: shown() == [("first", ["web"]), ("second", ["web"])], "both hosts")
            os.kill(process.pid, signal.SIGINT)
            assert process.wait(10) == 0
