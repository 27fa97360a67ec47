"""The same programs under PyPI's Supervisor and stepkeeper: an event listener is told the same, in the same words."""

import re
import sys
from typing import Any

import pytest

from bench import peer
from tests.places import CHILDREN
from tests.reading import records
from tests.system.both import Side, our_daemon, play, stock_daemon

pytestmark = pytest.mark.slow  # may have to install Supervisor first

RECORDER = CHILDREN / "listener.py"
TALKER = r"""
import os, time
def tell(data, to=1):
    os.write(to, data)
    time.sleep(0.5)  # so that neither reads two of these at once
tell(b"first words\n")
tell(b"seen <!--XSUPERVISOR:BEGIN-->told to liste")
tell(b"ners<!--XSUPERVISOR:END--> seen again and some more\n")
tell(b"<!--XSUPERVISOR:BEGIN-->another one<!--XSUPERVISOR:END-->the rest of it, longer than a mark\n")
tell(b"an error, and a <!--XSUPERVISOR:BEGIN-->mark<!--XSUPERVISOR:END--> there\n", 2)
time.sleep(1000)
"""
PROGRAMS = f"""[program:good]
command=/bin/sleep 100000
[program:short]
command=/bin/sh -c "sleep 3; exit 7"
autostart=false
autorestart=false
[program:short_well]
command=/bin/sh -c "sleep 3"
autostart=false
autorestart=false
[program:broken]
command=/bin/sh -c "exit 3"
autostart=false
startsecs=3
startretries=1
[program:quick]
command=/bin/true
autostart=false
autorestart=false
startsecs=0
[program:pair]
command=/bin/sleep 100000
autostart=false
numprocs=2
process_name=%(program_name)s_%(process_num)d
[program:talker]
command={sys.executable} %(here)s/../talker.py
autostart=false
stdout_events_enabled=true
stderr_events_enabled=true
stdout_capture_maxbytes=1KB
stdout_logfile=%(here)s/talker.log
[eventlistener:tape]
command={sys.executable} {RECORDER} %(here)s/printed.jsonl
events=PROCESS_LOG,PROCESS_COMMUNICATION
buffer_size=100
[eventlistener:ear]
command={sys.executable} {RECORDER} %(here)s/heard.jsonl
events=PROCESS_STATE,PROCESS_GROUP,SUPERVISOR_STATE_CHANGE,REMOTE_COMMUNICATION
buffer_size=100
"""


def script(side: Side) -> None:
    """What both are told to do."""
    side.until_state("ear", "RUNNING")
    side.until_state("good", "RUNNING")
    side.until_state("tape", "RUNNING")
    side.rpc("supervisor.startProcess", "talker")
    for name, ends in (("short", "EXITED"), ("short_well", "EXITED"), ("broken", "FATAL"), ("quick", "EXITED")):
        side.rpc("supervisor.startProcess", name, False)
        side.until_state(name, ends)
    side.rpc("supervisor.startProcessGroup", "pair")
    side.rpc("supervisor.sendRemoteCommEvent", "word", "two\nlines")
    side.rpc("supervisor.stopProcess", "good")
    side.until(lambda: any("there\n" in each["payload"] for each in heard(side, "printed")), "all of it is told")
    side.rpc("supervisor.stopProcess", "talker")
    side.rpc("supervisor.stopProcessGroup", "pair")
    side.rpc("supervisor.removeProcessGroup", "pair")
    side.rpc("supervisor.addProcessGroup", "pair")
    side.rpc("supervisor.shutdown")
    side.until_gone()


def heard(side: Side, what: str = "heard") -> list[dict[str, Any]]:
    return records(side.folder / f"{what}.jsonl")


def words(event: dict[str, Any]) -> str:
    """An event without its pid."""
    return f"{event['headers']['eventname']} {re.sub(r'pid:[1-9][0-9]*', 'pid:N', event['payload'])}"


def of(events: list[dict[str, Any]], process: str) -> list[str]:
    return [words(event) for event in events if f"processname:{process} " in event["payload"]]


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory):
    try:
        stock = peer.binaries()
    except peer.NotInstalled as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("listeners")
    (folder / "talker.py").write_text(TALKER)
    client = (str(stock / "supervisorctl"),)
    sides = tuple(
        Side(folder / name, command, client, PROGRAMS)
        for name, command in (("stock", stock_daemon(stock)), ("ours", our_daemon()))
    )
    play(script, *sides)
    return sides


@pytest.fixture(scope="module")
def both(sides: tuple[Side, Side]):
    return heard(sides[0]), heard(sides[1])


def printed(side: Side) -> dict[str, str]:
    """By type of event: the words before what was printed, but for the pid, and all of that."""
    found: dict[str, str] = {}
    for each in heard(side, "printed"):
        head, _, data = each["payload"].partition("\n")
        key = f"{each['headers']['eventname']} {re.sub(r'pid:[1-9][0-9]*', 'pid:N', head)}"
        separator = "|" if "COMMUNICATION" in key else ""  # where one piece ends is chance, where a message ends is not
        found[key] = found.get(key, "") + separator + data
    return found


def test_output_events_match_supervisors(sides: tuple[Side, Side]):
    stock, ours = (printed(side) for side in sides)

    assert len(ours) == 3
    assert stock == ours
    logs = [(side.folder / "talker.log").read_text() for side in sides]
    assert logs[0] == logs[1] != ""


@pytest.mark.parametrize("process", ["good", "short", "short_well", "broken", "quick", "pair_0", "pair_1"])
def test_a_program_s_life_is_told_in_the_same_words(both: tuple[Any, Any], process: str):
    stock, ours = both

    assert of(stock, process) == of(ours, process)


def test_daemon_events_match_supervisors_order(both: tuple[Any, Any]):
    stock, ours = ([words(each) for each in side if "processname:" not in each["payload"]] for side in both)

    assert stock == ours


def test_the_headers_are_the_same(both: tuple[Any, Any]):
    stock, ours = ([each["headers"] for each in side] for side in both)

    assert {tuple(each) for each in stock} == {tuple(each) for each in ours}
    for key in ("ver", "server", "pool"):
        assert {each[key] for each in stock} == {each[key] for each in ours}
    assert [int(each["poolserial"]) for each in ours] == list(range(len(ours)))
