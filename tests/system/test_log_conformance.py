"""log_format = supervisor: what the daemons of both write of the same programs, line by line."""

import re

import pytest

from bench import peer
from tests.system.both import Side, our_daemon, play, stock_daemon

PROGRAMS = """[supervisord]
log_format=supervisor
[program:broken]
command=/bin/sh -c 'exit 3'
startsecs=3
startretries=1
[program:brief]
command=/bin/sleep 3
autorestart=false
[program:shot]
command=/bin/sleep 100000
autorestart=false
[program:halted]
command=/bin/sleep 100000
startsecs=2
[program:deaf]
command=/bin/sh -c 'trap "" TERM; while :; do sleep 1; done'
stopwaitsecs=1
killasgroup=true
"""
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (?:CRIT|ERRO|WARN|INFO|DEBG) .*")
WORDS = re.compile(r"(spawned: |success: |exited: |stopped: |gave up: |killing |supervisord started|received )")
"""How lines begin that are the same in both; Supervisor says `waiting for` every two seconds."""


def script(side: Side) -> None:
    for name in ("shot", "halted", "deaf"):
        side.until_state(name, "RUNNING")
    side.call("supervisor.signalProcess", "shot", "KILL")
    side.until_state("broken", "FATAL")
    side.until_state("brief", "EXITED")
    side.until_state("shot", "EXITED")
    side.call("supervisor.stopProcess", "halted")
    side.call("supervisor.stopProcess", "deaf")


def lines(side: Side) -> dict[str, list[str]]:
    """By program (or the daemon): its lines in order, without times and pids."""
    found: dict[str, list[str]] = {}
    for line in (side.folder / "daemon.log").read_text().splitlines():
        assert LINE.fullmatch(line), line
        _, _, level, text = line.split(" ", 3)
        if WORDS.match(text):
            name = next(
                (match_ for match_ in re.findall(r"[a-z]+", text) if f"[program:{match_}]" in PROGRAMS), "daemon"
            )
            found.setdefault(name, []).append(f"{level} " + re.sub(r"pid \d+|\(\d+\)", "N", text))
    return found


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    try:
        stock = peer.binaries()
    except peer.NotInstalled as error:
        pytest.skip(str(error))
    folder, client = tmp_path_factory.mktemp("log"), (str(stock / "supervisorctl"),)
    supervisors = Side(folder / "stock", stock_daemon(stock), client, PROGRAMS)
    ours = Side(folder / "ours", our_daemon(), client, PROGRAMS)
    play(script, supervisors, ours)
    return lines(supervisors), lines(ours)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["broken", "brief", "shot", "halted", "deaf", "daemon"])
def test_the_lines_are_the_same(both, name):
    stock, ours = both

    assert len(stock[name]) >= 2
    assert ours[name] == stock[name]
