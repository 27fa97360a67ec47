"""The same programs under PyPI's Supervisor and stepkeeper: an event listener is told the same, in the same words."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import peer
from tests.system.both import Side, our_daemon, stock_daemon

pytestmark = pytest.mark.slow  # may have to install Supervisor first

RECORDER = Path(__file__).parent.parent / "children" / "listener.py"
PROGRAMS = f"""[program:good]
command=/bin/sleep 1000
[program:short]
command=/bin/sh -c "sleep 1.6; exit 7"
autostart=false
autorestart=false
[program:short_well]
command=/bin/sh -c "sleep 1.6"
autostart=false
autorestart=false
[program:broken]
command=/bin/sh -c "exit 3"
autostart=false
startretries=1
[program:quick]
command=/bin/true
autostart=false
autorestart=false
startsecs=0
[program:pair]
command=/bin/sleep 1000
autostart=false
numprocs=2
process_name=%(program_name)s_%(process_num)d
[eventlistener:ear]
command={sys.executable} {RECORDER} %(here)s/heard.jsonl
events=PROCESS_STATE,PROCESS_GROUP,SUPERVISOR_STATE_CHANGE,REMOTE_COMMUNICATION
buffer_size=100
"""


def script(side: Side) -> None:
    """What both are told to do."""
    side.until_state("ear", "RUNNING")
    side.until_state("good", "RUNNING")
    for name, ends in (("short", "EXITED"), ("short_well", "EXITED"), ("broken", "FATAL"), ("quick", "EXITED")):
        side.rpc("supervisor.startProcess", name, False)
        side.until_state(name, ends)
    side.rpc("supervisor.startProcessGroup", "pair")
    side.rpc("supervisor.sendRemoteCommEvent", "word", "two\nlines")
    side.rpc("supervisor.stopProcess", "good")
    side.rpc("supervisor.stopProcessGroup", "pair")
    side.rpc("supervisor.removeProcessGroup", "pair")
    side.rpc("supervisor.addProcessGroup", "pair")
    side.rpc("supervisor.shutdown")
    side.until_gone()


def heard(side: Side) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (side.folder / "heard.jsonl").read_text().splitlines()]


def words(event: dict[str, Any]) -> str:
    """An event without its pid."""
    return f"{event['headers']['eventname']} {re.sub(r'pid:[1-9][0-9]*', 'pid:N', event['payload'])}"


def of(events: list[dict[str, Any]], process: str) -> list[str]:
    return [words(each) for each in events if f"processname:{process} " in each["payload"]]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory):
    try:
        stock = peer.binaries()
    except peer.NotInstalled as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("listeners")
    sides = []
    for name, command in (("stock", stock_daemon(stock)), ("ours", our_daemon())):
        with Side(folder / name, command, (str(stock / "supervisorctl"),), PROGRAMS) as side:
            script(side)
        sides.append(side)
    return heard(sides[0]), heard(sides[1])


@pytest.mark.parametrize("process", ["good", "short", "short_well", "broken", "quick", "pair_0", "pair_1"])
def test_a_program_s_life_is_told_in_the_same_words(both: tuple[Any, Any], process: str):
    stock, ours = both

    assert of(stock, process) == of(ours, process)


def test_what_is_of_no_program_is_told_in_the_same_order(both: tuple[Any, Any]):
    stock, ours = ([words(each) for each in side if "processname:" not in each["payload"]] for side in both)

    assert stock == ours


def test_the_headers_are_the_same(both: tuple[Any, Any]):
    stock, ours = ([each["headers"] for each in side] for side in both)

    assert {tuple(each) for each in stock} == {tuple(each) for each in ours}
    for key in ("ver", "server", "pool"):
        assert {each[key] for each in stock} == {each[key] for each in ours}
    assert [int(each["poolserial"]) for each in ours] == list(range(len(ours)))
