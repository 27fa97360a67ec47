"""Event listeners under a whole daemon: what they are told, and that nothing goes missing when they or it die."""

import http.client
import socket
import sys
import threading
import xmlrpc.client
from pathlib import Path
from typing import Any

import pytest

from tests.places import CHILDREN
from tests.reading import alive, content, records
from tests.system.both import UnixTransport
from tests.system.harness import PATIENCE_S, Daemon, job

LISTENER = CHILDREN / "listener.py"


def ear(folder: Path, events: str, keys: str = "", answers: str = "", name: str = "ear") -> str:
    """A section for the listener that writes down what it hears."""
    return (
        f"[eventlistener:{name}]\ncommand={sys.executable} {LISTENER} {folder}/{name}.jsonl\nevents={events}\n"
        f'startsecs=0\nenvironment=ANSWERS="{answers}"\n{keys}\n'
    )


def heard(folder: Path, name: str = "ear") -> list[dict[str, Any]]:
    return records(folder / f"{name}.jsonl")


def payloads(folder: Path, name: str = "ear") -> list[str]:
    return [each["payload"] for each in heard(folder, name)]


def tell(daemon: Daemon, *words: str) -> None:
    with xmlrpc.client.ServerProxy("http://localhost/RPC2", UnixTransport(daemon.socket)) as proxy:
        for word in words:
            assert proxy.supervisor.sendRemoteCommEvent("t", word)


def until_heard(daemon: Daemon, *wanted: str) -> None:
    daemon.until(lambda: payloads(daemon.folder) == list(wanted), f"{wanted} are heard, not {payloads(daemon.folder)}")


def test_payloads_of_any_text_arrive_whole_and_the_listener_keeps_step(tmp_path: Path):
    words = ["häß", "", "two\nlines\n", "日本語 🦉", "x" * 200_000, "end"]
    with Daemon(tmp_path, ear(tmp_path, "REMOTE_COMMUNICATION")) as daemon:
        tell(daemon, *words)

        until_heard(daemon, *(f"type:t\n{word}" for word in words))
        assert [int(each["headers"]["poolserial"]) for each in heard(tmp_path)] == list(range(len(words)))


@pytest.mark.parametrize("answer", ["FAIL", "die", "nonsense"])
def test_rejected_event_is_sent_again_before_the_rest(tmp_path: Path, answer: str):
    with Daemon(tmp_path, ear(tmp_path, "REMOTE_COMMUNICATION", answers=answer)) as daemon:
        tell(daemon, "first", "second")
        if answer == "nonsense":  # nothing is sent to it until somebody starts it again
            daemon.until(lambda: "UNKNOWN" in daemon.status("ear")["description"], "it is not trusted")
            daemon.call("stop", name="ear")
            daemon.call("start", name="ear")

        until_heard(daemon, "type:t\nfirst", "type:t\nfirst", "type:t\nsecond")
        serials = [each["headers"]["serial"] for each in heard(tmp_path)]
        assert serials[0] == serials[1]


def test_another_of_the_pool_takes_what_a_dying_one_had(tmp_path: Path):
    pool = ear(tmp_path, "REMOTE_COMMUNICATION", "numprocs=2\nprocess_name=%(process_num)d\nautorestart=false", "die")
    with Daemon(tmp_path, pool) as daemon:
        daemon.until(lambda: _standings(daemon) == ["READY", "READY"], "both are ready")
        tell(daemon, "word")

        until_heard(daemon, "type:t\nword", "type:t\nword")

        def gone() -> set[bool]:
            return {daemon.status(name)["pid"] is None for name in ("ear:0", "ear:1")}

        daemon.until(lambda: gone() == {True, False}, "one of them is gone")


def _standings(daemon: Daemon) -> list[str]:
    return [program["listener"]["standing"] for program in daemon.call("status")["programs"] if program["listener"]]


def metrics(daemon: Daemon) -> str:
    connection = http.client.HTTPConnection("localhost", timeout=60)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.connect(str(daemon.socket))
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def test_events_beyond_the_buffer_are_counted_and_reported(tmp_path: Path):
    hung = ear(tmp_path, "REMOTE_COMMUNICATION", "buffer_size=2\nstopsignal=KILL", "hang")
    with Daemon(tmp_path, hung) as daemon:
        tell(daemon, "taken")
        until_heard(daemon, "type:t\ntaken")
        tell(daemon, "lost", "lost too", "kept", "kept too")

        status = daemon.status("ear")
        listener = status["listener"]
        assert (listener["standing"], listener["waiting"], listener["dropped"]) == ("BUSY", 2, 2)
        assert "2 events dropped" in status["description"]
        assert 'stepkeeper_listener_events_total{pool="ear",fate="dropped"} 2.0' in metrics(daemon)
        daemon.until(lambda: daemon.events("listener.event_dropped"), "it is in the log")
        assert daemon.events("listener.event_dropped") == ["listener.event_dropped"]
        daemon.call("stop", name="ear")
        daemon.call("start", name="ear")
        until_heard(daemon, *(f"type:t\n{word}" for word in ("taken", "taken", "kept", "kept too")))


@pytest.mark.slow
def test_a_listener_hears_how_programs_end_when_the_daemon_leaves(tmp_path: Path):
    events = "PROCESS_STATE_STOPPED,SUPERVISOR_STATE_CHANGE"
    slow = "trap 'sleep 1; exit 0' TERM; while :; do sleep 0.1; done"
    listener = ear(tmp_path, events, answers="OK,late")
    with Daemon(tmp_path, f'[program:p]\ncommand=/bin/sh -c "{slow}"\n{listener}') as daemon:
        daemon.until_state("p", "RUNNING")
        assert daemon.stop() == 0

    names = [each["headers"]["eventname"] for each in heard(tmp_path)]
    assert names == [
        "SUPERVISOR_STATE_CHANGE_RUNNING",
        "SUPERVISOR_STATE_CHANGE_STOPPING",
        "PROCESS_STATE_STOPPED",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("stubborn", [False, True], ids=["ends with its input", "ignores it"])
def test_after_the_daemon_s_death_the_next_starts_listeners_anew_and_programs_go_on(tmp_path: Path, stubborn: bool):
    command = f"{sys.executable} -c \"import time; print('READY', flush=True); time.sleep(1000)\""
    deaf = f"[eventlistener:deaf]\ncommand={command}\nevents=EVENT\nstartsecs=0\n" if stubborn else ""
    programs = "[program:p]\ncommand=/bin/sleep 100000\n" + ear(tmp_path, "PROCESS_STATE_RUNNING") + deaf
    name = "deaf" if stubborn else "ear"
    with Daemon(tmp_path, programs) as daemon:
        pid = daemon.until_state("p", "RUNNING")["pid"]
        listener = daemon.until_state(name, "RUNNING")["pid"]
        daemon.until(lambda: _running("p", pid) in payloads(tmp_path), "the first one hears of p")

        daemon.die()
        daemon.start()

        daemon.until(lambda: daemon.status(name)["pid"] not in (None, listener), "another listener runs")
        assert not alive(listener)
        assert daemon.until_state("p", "RUNNING")["pid"] == pid
        daemon.until(lambda: payloads(tmp_path).count(_running("p", pid)) == 2, "the new one hears of p")


def _running(name: str, pid: int) -> str:
    return f"processname:{name} groupname:{name} from_state:STARTING pid:{pid}"


@pytest.mark.slow
def test_reload_starts_listeners_anew(tmp_path: Path):
    with Daemon(tmp_path, ear(tmp_path, "SUPERVISOR_STATE_CHANGE")) as daemon:
        listener = daemon.until_state("ear", "RUNNING")["pid"]
        daemon.until(lambda: len(heard(tmp_path)) == 1, "it hears of this daemon")
        daemon.call("reload")

        def is_another() -> bool:
            try:
                return bool(daemon.status("ear")["pid"] not in (None, listener))
            except OSError:
                return False

        daemon.until(is_another, "another listener runs")

        def begun() -> int:  # whether the old one still heard of the end is a race
            names = [each["headers"]["eventname"] for each in heard(tmp_path)]
            return names.count("SUPERVISOR_STATE_CHANGE_RUNNING")

        daemon.until(lambda: begun() == 2, "it hears of the new daemon")


def test_an_update_tells_of_groups_and_changes_what_a_listener_hears(tmp_path: Path):
    with Daemon(tmp_path, ear(tmp_path, "PROCESS_GROUP")) as daemon:
        daemon.until(lambda: payloads(tmp_path) == ["groupname:ear\n"], "it hears of itself")
        daemon.write(ear(tmp_path, "PROCESS_GROUP") + "[program:p]\ncommand=/bin/sleep 100000\n")
        daemon.call("update")
        daemon.write(ear(tmp_path, "PROCESS_GROUP"))
        daemon.call("update")
        until_heard(daemon, "groupname:ear\n", "groupname:p\n", "groupname:p\n")
        assert heard(tmp_path)[-1]["headers"]["eventname"] == "PROCESS_GROUP_REMOVED"

        daemon.write(ear(tmp_path, "REMOTE_COMMUNICATION"))
        daemon.call("update")
        tell(daemon, "word")
        daemon.until(lambda: payloads(tmp_path)[-1] == "type:t\nword", "it hears what it asks for now")

        daemon.write("")
        daemon.call("update")
        assert daemon.call("status")["programs"] == []


def test_a_listener_s_log_has_a_copy_of_what_it_said_if_asked_for(tmp_path: Path):
    log = tmp_path / "said.log"
    with Daemon(tmp_path, ear(tmp_path, "REMOTE_COMMUNICATION", f"stdout_logfile={log}")) as daemon:
        tell(daemon, "word")

        daemon.until(lambda: content(log) == b"READY\nRESULT 2\nOKREADY\n", "the copy is whole")


def test_a_job_s_stop_is_told_once_and_its_flush_is_no_other_state(tmp_path: Path):
    """FLUSHING is RUNNING or STOPPING on the wire: listeners see no state that Supervisor does not have."""
    programs = job("digits", tmp_path, STEPS=1_000_000, EVERY=1_000_000) + ear(tmp_path, "PROCESS_STATE")
    with Daemon(tmp_path, programs) as daemon:
        daemon.until_step("digits", 1)
        daemon.call("checkpoint", name="digits")
        daemon.call("stop", name="digits")

        def moves() -> list[str]:
            mine = [each for each in heard(tmp_path) if "processname:digits " in each["payload"]]
            return [each["headers"]["eventname"].removeprefix("PROCESS_STATE_") for each in mine]

        daemon.until(lambda: "STOPPED" in moves(), "the stop is told")
        assert moves() == ["STARTING", "RUNNING", "STOPPING", "STOPPED"]


def test_many_threads_tell_and_nothing_is_lost(tmp_path: Path):
    with Daemon(tmp_path, ear(tmp_path, "REMOTE_COMMUNICATION")) as daemon:
        threads = [
            threading.Thread(target=tell, args=(daemon, *(f"{number}.{each}" for each in range(25))))
            for number in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        daemon.until(lambda: len(payloads(tmp_path)) == 100, "all are heard")
        assert len(set(payloads(tmp_path))) == 100


def test_a_daemon_that_ends_when_all_is_done_does_not_wait_for_listeners(tmp_path: Path):
    done = f"until test -e {tmp_path}/done; do sleep 0.05; done"
    programs = f'[program:p]\ncommand=/bin/sh -c "{done}"\nstartsecs=0\n' + ear(tmp_path, "PROCESS_STATE_EXITED")
    with Daemon(tmp_path, programs, "exit_on=done") as daemon:
        daemon.until(lambda: _standings(daemon) == ["READY"], "the listener listens")
        (tmp_path / "done").touch()

        assert daemon.process is not None and daemon.process.wait(PATIENCE_S) == 0
    assert ["processname:p" in payload for payload in payloads(tmp_path)] == [True]
