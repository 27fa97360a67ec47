"""What comes in while programs run: files read again, and what listeners say; a program that works notices nothing."""

import os
import xmlrpc.client
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, event, given
from hypothesis import strategies as st

from supervisor.config.keys.daemon import SupervisordConfig
from supervisor.config.keys.groups import ListenerConfig, ProcessesConfig
from supervisor.config.keys.program import ProgramConfig
from supervisor.config.keys.server import CtlConfig, InetServerConfig, UnixServerConfig
from tests.fuzzing import cases
from tests.system.both import UnixTransport
from tests.system.harness import Daemon, Refused


def no_error_of_its_own(daemon: Daemon) -> None:
    """Nothing since the last time; what was looked at goes, as there may be 100,000 cases."""
    said = daemon.folder / "daemon.err"
    assert "Traceback" not in said.read_text(errors="replace")
    os.truncate(said, 0)


LASTING = "[program:lasting]\ncommand=/bin/sleep 100000\nstdout_logfile=NONE\nstderr_logfile=NONE\n"


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon whose configuration includes what a test writes."""
    folder: Path = tmp_path_factory.mktemp("reading")
    (folder / "more").mkdir()
    with Daemon(folder, f"{LASTING}[include]\nfiles=more/*.conf\n") as daemon:
        daemon.until_state("lasting", "RUNNING")
        yield daemon


RUN_SOMETHING = {"command", "stop_command", "healthcheck_command"} | {
    key for key in {*ProgramConfig.ini_keys(), *SupervisordConfig.ini_keys()} if key.startswith("hook")
}
SLOW = {"numprocs", "stopwaitsecs"}  # a thousand processes, and a year's wait, are no mistakes
PROGRAM_KEYS = sorted(
    {*ProgramConfig.ini_keys(), *ProcessesConfig.ini_keys(), *ListenerConfig.ini_keys(), "nonsense"}
    - RUN_SOMETHING
    - SLOW
)
OTHER_KEYS = sorted(
    {*SupervisordConfig.ini_keys(), *UnixServerConfig.ini_keys(), *InetServerConfig.ini_keys(), *CtlConfig.ini_keys()}
    | {"files", "programs", "nonsense"} - RUN_SOMETHING
)
WORDS = ["1", "0", "3", "-1", "true", "false", "AUTO", "NONE", "%(here)s", "%(process_num)d", "%", "a", "a,b", "g", "x"]
MORE = ["TERM", "50MB", "022", "root", "9001", "PROCESS_STATE", "EVENT", "A=1", '"', "10 minutes", "lasting"]

texts = st.text(st.characters(exclude_characters="/~\n\r", exclude_categories=["Cs"]), max_size=8)
# files are made where values lead, so none leads out of the folder
values = st.lists(st.sampled_from(WORDS + MORE) | texts, max_size=2).map(" ".join)


def lines(keys: list[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.tuples(st.sampled_from(keys) | texts, values).map(" = ".join), max_size=4)


programs = st.tuples(
    st.sampled_from(["program:a", "program:b", "program:lasting2", "eventlistener:l"]),
    st.sampled_from(["/bin/sleep 100000", "/bin/true", "/nowhere/at/all"]),
    st.integers(1, 3),
    lines(PROGRAM_KEYS),
).map(lambda each: "\n".join([f"[{each[0]}]", f"command={each[1]}", f"numprocs={each[2]}", "stopwaitsecs=0", *each[3]]))
others = st.tuples(
    st.sampled_from(["supervisord", "group:g", "unix_http_server:b", "inet_http_server", "supervisorctl", "include"])
    | texts.map(lambda name: f"group:{name}"),
    lines(OTHER_KEYS),
).map(lambda each: "\n".join([f"[{each[0]}]", *each[1]]))
wild = st.lists(programs | others | texts, max_size=4).map("\n".join)

GOOD = [
    "priority=5",
    "autostart=false",
    "autorestart=true",
    "startsecs=0",
    "environment=A=1",
    "umask=027",
    "exitcodes=0,2",
]
GOOD += [
    "stdout_logfile=NONE",
    "stdout_logfile=out.log",
    "redirect_stderr=true",
    "stopsignal=KILL",
    "oom_score_adjust=9",
]
GOOD += ["startretries=0", "stdout_events_enabled=true", "limit_core=0", "memory_limit=1GB", "directory=%(here)s"]
tidy = st.dictionaries(
    st.sampled_from(["a", "b", "lasting2"]),
    st.tuples(
        st.sampled_from(["/bin/sleep 100000", "/bin/true", "/nowhere/at/all"]),
        st.integers(1, 3),
        st.lists(st.sampled_from(GOOD), max_size=3),
        st.booleans(),
    ),
).map(
    lambda each: "\n".join(
        f"[program:{name}]\ncommand={command}\nnumprocs={count}\nprocess_name=%(program_name)s_%(process_num)d\n"
        "stopwaitsecs=0\n" + "\n".join(keys) + (f"\n[group:of_{name}]\nprograms={name}" if grouped else "")
        for name, (command, count, keys, grouped) in each.items()
    )
)
files = tidy | wild


@pytest.mark.fuzz
@cases(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files)
def test_any_file_is_carried_out_or_refused_and_others_run_on(reading: Daemon, text: str):
    pid = reading.status("lasting")["pid"]
    (reading.folder / "more" / "any.conf").write_text(text)

    outcomes = []
    for command in ("reread", "update"):
        try:
            reading.call(command)
            outcomes.append("done")
        except Refused as refused:
            outcomes.append(refused.code)

    event(outcomes[0])
    no_error_of_its_own(reading)
    assert set(outcomes) in ({"done"}, {"CANT_REREAD"})
    assert (reading.status("lasting")["pid"], reading.status("lasting")["state"]) == (pid, "RUNNING")


SAYS = "if [ -e asked ]; then echo READY; read -r header; fi; cat said; echo >over; exec cat >/dev/null"
EAR = (
    "[eventlistener:ear]\nevents=REMOTE_COMMUNICATION\nautostart=false\nautorestart=false\nstartsecs=0\n"
    f"command=/bin/sh -c '{SAYS}'\n"
)


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with a listener that says what is in the file `said`; after an event, if there is a file `asked`."""
    folder: Path = tmp_path_factory.mktemp("hearing")
    with Daemon(folder, f"{LASTING}{EAR}directory={folder}\n") as daemon:
        daemon.until_state("lasting", "RUNNING")
        yield daemon


ANSWERS = st.sampled_from(
    [b"READY\n", b"RESULT 2\nOK", b"RESULT 4\nFAIL", b"RESULT 0\n", b"RESULT -1\n", b"RESULT 99999"]
)


@pytest.mark.slow
@pytest.mark.fuzz
@cases(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.booleans(), st.lists(ANSWERS | st.binary(max_size=20), max_size=6).map(b"".join), st.integers(1, 3000))
def test_daemon_survives_anything_a_listener_writes(hearing: Daemon, asked: bool, said: bytes, times: int):
    pid, over = hearing.status("lasting")["pid"], hearing.folder / "over"
    over.unlink(missing_ok=True)
    (hearing.folder / "said").write_bytes(said * times)
    if asked:
        (hearing.folder / "asked").touch()
    else:
        (hearing.folder / "asked").unlink(missing_ok=True)

    with xmlrpc.client.ServerProxy("http://localhost/RPC2", UnixTransport(hearing.socket)) as proxy:
        assert proxy.supervisor.sendRemoteCommEvent("t", "any")
    hearing.call("start", name="ear", wait=False)
    hearing.until(over.exists, "it has said all")
    standing = hearing.status("ear")
    hearing.call("stop", name="ear")

    no_error_of_its_own(hearing)
    assert standing["state"] == "RUNNING"
    assert (hearing.status("lasting")["pid"], hearing.status("lasting")["state"]) == (pid, "RUNNING")
