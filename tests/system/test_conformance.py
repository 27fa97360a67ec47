"""Supervisor's clients can't tell the difference: the same scripts against PyPI's Supervisor 4.3.0 and against ours.

Each script is a list of steps, done with the stock supervisorctl or with xmlrpc.client. What every step gave is
compared after masking pids, times and folders. What differs must stand in INTENDED, exactly, with its reason; and
what stands there must differ. Three things are never compared: what follows the name in a fault's text, which says
more here; how a command is quoted, as ours are kept as arguments; and the order in which several programs stop or
start, which is that of completion with either.
"""

import base64
import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from pprint import pformat
from typing import Any

import pytest

from bench import peer
from supervisor import __version__
from tests.control.test_endpoints import free_port
from tests.system.both import LOGIN, Script, Side, differing, our_ctl, our_daemon, play, stock_daemon

pytestmark = pytest.mark.slow  # two daemons for each script, and Supervisor looks at its programs once a second

TALK = r"echo one; printf 'caf\303\251\n'; echo oops >&2; exec sleep 1000"

# Supervisor looks for exits after it has looked whether `startsecs` went by, and then waits up to 1 s for something to
# happen. With the default of 1 s it takes a program that ended at once for running, in a third of all starts.
PROGRAMS = f"""[program:job]
command=/bin/sleep 100000
[program:off]
command=/bin/sleep 100000
autostart=false
[program:talker]
command=/bin/sh -c "{TALK}"
priority=10
[program:crash]
command=/bin/sh -c "exit 3"
autostart=false
startsecs=3
startretries=0
[program:flaky]
command=/bin/sh -c "exit 3"
autostart=false
startsecs=3
startretries=20
[program:stubborn]
command=/bin/sh -c "trap '' TERM; exec sleep 1000"
autostart=false
stopwaitsecs=8
[program:slow]
command=/bin/sh -c "trap '' TERM; exec sleep 1000"
autostart=false
stopwaitsecs=60
[program:missing]
command=/nonexistent/program
autostart=false
[program:plain]
command=%(here)s/plain.txt
autostart=false
[program:once]
command=/bin/sh -c "sleep 1.5"
autorestart=false
[program:bad]
command=/bin/sh -c "sleep 1.5; exit 4"
autorestart=false
stdout_logfile=NONE
redirect_stderr=true
[program:w]
command=/bin/sleep 100000%(process_num)d
process_name=%(program_name)s_%(process_num)02d
numprocs=2
numprocs_start=3
autostart=false
[program:late]
command=/bin/sleep 100000
autostart=false
priority=30
[program:early]
command=/bin/sh -c "echo $SUPERVISOR_GROUP_NAME $SUPERVISOR_PROCESS_NAME; exec sleep 1000"
autostart=false
priority=20
[program:reader]
command=/bin/cat
autostart=false
stdout_syslog=true
[program:echo]
command=/bin/cat
autostart=false
[program:shut]
command=/bin/sh -c "exec 0<&-; exec sleep 1000"
autostart=false
[group:g]
programs=early,late
priority=5
"""


@dataclass(frozen=True)
class Difference:
    """A part of what a step gives with either daemon, masked, and why it is not the same.

    `where`: the key of the struct it stands in, or else the client's action or the method.
    """

    where: str
    stock: Any
    ours: Any
    reason: str


def looking(side: Side) -> None:
    settle(side)
    side.ctl("status")
    for names in (["job"], ["job:job", "off"], ["job:*"], ["nope"], ["nope:*"], ["off", "nope"], ["all"]):
        side.ctl("status", *names)
    side.ctl("pid")
    side.ctl("pid", "job")
    side.ctl("pid", "off")
    side.ctl("pid", "job", "nope", "off")
    side.ctl("pid", "all")
    side.ctl("avail")
    side.ctl("version")
    side.ctl("bogus")
    side.ctl("start")
    side.ctl("stop")
    side.ctl("help", "start")


def settle(side: Side) -> None:
    for name, state in (("job", "RUNNING"), ("talker", "RUNNING"), ("once", "EXITED"), ("bad", "EXITED")):
        side.until_state(name, state)


def starting_and_stopping(side: Side) -> None:
    settle(side)
    side.ctl("start", "off")
    side.ctl("start", "off")
    side.ctl("start", "nope")
    side.ctl("start", "nope:*")
    side.ctl("start", "job:*")
    side.ctl("start", "missing", "plain")
    side.ctl("start", "crash")
    side.until_state("crash", "FATAL")
    side.ctl("status", "crash", "missing")
    side.rpc("supervisor.getProcessInfo", "crash")
    side.ctl("stop", "off")
    side.ctl("stop", "off", "nope", "nope:*")
    side.ctl("status", "off")
    side.ctl("restart", "off")
    side.ctl("restart", "job")
    side.ctl("stop", "job:*", "off")
    side.ctl("start", "job:job", "off:*")
    side.ctl("stop", "all")
    side.ctl("stop", "all")
    side.ctl("status", "job", "off", "talker")


def signalling(side: Side) -> None:
    settle(side)
    side.ctl("signal", "CONT", "job")
    side.ctl("signal", "18", "job", "off", "nope")
    side.ctl("signal", "BOGUS", "job")
    side.ctl("signal", "CONT", "all")
    side.ctl("signal", "CONT", "job:*", "nope:*")
    side.ctl("signal", "CONT")
    side.rpc("supervisor.signalProcess", "job", "SIGCONT")
    side.rpc("supervisor.signalProcess", "job", 18)
    side.rpc("supervisor.signalProcess", "job", "")
    side.rpc("supervisor.signalProcessGroup", "job", "CONT")
    side.rpc("supervisor.signalAllProcesses", "CONT")
    side.rpc("supervisor.signalAllProcesses", "BOGUS")


def reading_logs(side: Side) -> None:
    settle(side)
    side.until_log("talker", "caf")
    for arguments in (["talker"], ["-4", "talker"], ["talker", "stderr"], ["nope"], ["bad"], ["bad", "stderr"]):
        side.ctl("tail", *arguments)
    side.ctl("tail", "talker", "both")
    side.ctl("tail", "-x", "talker")
    side.ctl("tail", "-f", "nope")
    side.ctl("tail")
    side.follow("tail", "-f", "talker", until="caf")
    side.follow("tail", "-f", "talker:talker", "stderr", until="oops")
    for method in ("readProcessStdoutLog", "readProcessLog", "tailProcessStdoutLog", "tailProcessLog"):
        for offset, length in ((0, 0), (0, 3), (2, 4), (-4, 0), (-4, 2), (0, -1), (100, 3), (4, 100)):
            side.rpc(f"supervisor.{method}", "talker", offset, length)
    side.rpc("supervisor.readProcessStderrLog", "talker", 0, 0)
    side.rpc("supervisor.tailProcessStderrLog", "talker", 0, 100)
    side.rpc("supervisor.readProcessStdoutLog", "bad", 0, 0)
    side.rpc("supervisor.tailProcessStdoutLog", "bad", 0, 10)
    side.rpc("supervisor.tailProcessStdoutLog", "nope", 0, 10)
    side.rpc("supervisor.readLog", 0, -1)
    side.rpc("supervisor.readLog", -1, 1)
    side.ctl("clear", "talker")
    side.ctl("clear", "nope")
    side.ctl("clear", "all")
    side.rpc("supervisor.readProcessStdoutLog", "talker", 0, 0)
    side.rpc("supervisor.clearProcessLog", "job")
    side.rpc("supervisor.clearAllProcessLogs")
    side.rpc("supervisor.clearLog")


def describing(side: Side) -> None:
    settle(side)
    for name in ("job", "off", "once", "bad", "nope", "job:*", "job:job", "a:b:c", ""):
        side.rpc("supervisor.getProcessInfo", name)
    side.rpc("supervisor.getAllProcessInfo")
    side.rpc("supervisor.getAllConfigInfo")
    side.rpc("supervisor.getState")
    side.rpc("supervisor.getIdentification")
    side.rpc("supervisor.getAPIVersion")
    side.rpc("supervisor.getVersion")
    side.rpc("supervisor.getSupervisorVersion")
    side.rpc("system.listMethods")
    for method in side.call("system.listMethods"):
        side.rpc("system.methodSignature", method)
    for method in (
        "nope",
        "supervisor.nope",
        "supervisor._private",
        "supervisor.startProcess.real",
        "nope.x",
        "supervisor.__init__",
    ):
        side.rpc(method)
        side.rpc("system.methodSignature", method)
        side.rpc("system.methodHelp", method)


def calling(side: Side) -> None:
    settle(side)
    side.rpc("supervisor.startProcess", "off", False)
    side.rpc("supervisor.startProcess", "off")
    side.until_state("off", "RUNNING")
    side.rpc("supervisor.stopProcess", "off", False)
    side.until_state("off", "STOPPED")
    side.rpc("supervisor.stopProcess", "off")
    side.rpc("supervisor.startProcess", "off:*")
    side.rpc("supervisor.stopProcess", "off:*")
    side.rpc("supervisor.startProcess", "missing", False)
    side.rpc("supervisor.startProcess", "plain")
    side.rpc("supervisor.startProcess", "crash")
    side.rpc("supervisor.startProcessGroup", "missing")
    side.rpc("supervisor.startProcessGroup", "nope")
    side.rpc("supervisor.stopProcessGroup", "job")
    side.rpc("supervisor.stopProcessGroup", "off")
    side.rpc("supervisor.stopAllProcesses")
    side.rpc("supervisor.startProcess")
    side.rpc("supervisor.startProcess", "off", True, 1)
    side.rpc("supervisor.getPID", 1)
    side.rpc("supervisor.startProcess", 5)
    side.rpc("supervisor.sendProcessStdin", "off", "x")
    side.rpc("supervisor.sendProcessStdin", "nope", "x")
    side.rpc("supervisor.sendProcessStdin", "off", 5)
    side.rpc("supervisor.sendRemoteCommEvent", "kind", "data")
    calls = [
        {"methodName": "supervisor.getAPIVersion"},
        {"methodName": "supervisor.getProcessInfo", "params": ["nope"]},
        {"methodName": "supervisor.startProcess", "params": ["job"]},
        {"methodName": "supervisor.stopProcess", "params": ["job"]},
        {"methodName": "supervisor.nope", "params": []},
        {"methodName": "system.multicall", "params": [[]]},
        {"params": []},
    ]
    side.rpc("system.multicall", calls)
    side.rpc("system.multicall", [])
    side.rpc("system.multicall", [5])


def feeding(side: Side) -> None:
    settle(side)
    for names in ((), ("job", "off"), ("nope",), ("off",), ("g:*",)):
        side.ctl("fg", *names)
    side.ctl(typed="fg off\nfg\nexit\n")
    side.rpc("supervisor.sendProcessStdin", "reader", "early")
    side.rpc("supervisor.startProcess", "reader")
    side.rpc("supervisor.sendProcessStdin", "reader", "caf\u00e9 ")
    side.rpc("supervisor.sendProcessStdin", "reader:reader", "bytes\n")
    side.rpc("supervisor.sendProcessStdin", "reader", "")
    side.until_log("reader", "bytes")
    side.rpc("supervisor.readProcessStdoutLog", "reader", 0, 0)
    side.rpc("supervisor.sendProcessStdin", "reader", 5)
    side.rpc("supervisor.sendProcessStdin", "reader")
    side.rpc("supervisor.sendProcessStdin", "reader:*", "x")
    side.rpc("supervisor.stopProcess", "reader")
    side.rpc("supervisor.sendProcessStdin", "reader", "late")
    side.rpc("supervisor.startProcess", "shut")
    side.rpc("supervisor.sendProcessStdin", "shut", "x")


def typing(side: Side) -> None:
    settle(side)
    side.ctl(typed="status off\nstart off\nstatus nope\nbogus\n\nstop off\nexit\n")
    side.ctl("-i", typed="stop job\nreload\nn\nshutdown\nn\nquit\n")
    side.ctl("-i", "shutdown", typed="n\n")
    side.ctl("open", f"unix://{side.folder}/s.sock")
    side.ctl("open", "ftp://localhost")
    side.ctl("open", "http://localhost:1")
    side.ctl(typed=f"open ftp://localhost\nopen unix://{side.folder}/none.sock\nstatus off\nexit\n")


def remote(side: Side) -> None:
    settle(side)
    side.until_log("talker", "caf")
    here, (username, password) = ("-s", side.url), LOGIN
    known = (*here, "-u", username, "-p", password)
    for action in (("status", "job", "off"), ("pid", "job"), ("start", "off"), ("stop", "off", "nope"), ("avail",)):
        side.ctl(*known, *action)
    side.ctl(*known, "tail", "talker")
    side.ctl(*known, "fg", "off")
    side.ctl(*known, "start", "echo")
    side.follow(*known, "tail", "-f", "talker", until="caf")
    side.follow(*known, "fg", "echo", typed="hello\n", until="hello")
    for wrong in (
        here,
        (*here, "-u", username),
        (*here, "-u", username, "-p", "wrong"),
        (*here, "-u", "bob", "-p", password),
    ):
        side.ctl(*wrong, "status")
    for action in (("start", "off"), ("avail",), ("tail", "-f", "talker"), ("shutdown",)):
        side.ctl(*here, *action)
    side.ctl(*here, typed=f"{username}\n{password}\nstatus off\nexit\n")
    side.ctl(*here, "-i", "status", "off", typed=f"{username}\n{password}\n")
    calls = [{"methodName": "supervisor.getAPIVersion"}, {"methodName": "supervisor.startProcess", "params": ["job"]}]
    side.rpc_with("ann:let%3A%20me%20in", "system.multicall", calls)
    side.rpc_with("ann:wrong", "system.multicall", calls)
    good = base64.b64encode(f"{username}:{password}".encode()).decode()
    for path in ("/RPC2", "/logtail/talker", "/logtail/nope", "/nowhere"):
        for authorization in (None, f"Basic {good}", "Basic bm9ib2R5Om5vdGhpbmc="):
            side.get(path, authorization)


def waiting(side: Side) -> None:
    side.rpc("supervisor.startProcess", "flaky")
    side.rpc("supervisor.startProcess", "flaky")
    side.rpc("supervisor.removeProcessGroup", "flaky")
    side.rpc("supervisor.stopProcess", "flaky")
    side.ctl("status", "flaky")
    side.rpc("supervisor.startProcess", "stubborn")
    side.rpc("supervisor.stopProcess", "stubborn", False)
    side.rpc("supervisor.getProcessInfo", "stubborn")
    side.rpc("supervisor.stopProcess", "stubborn")
    side.rpc("supervisor.stopProcessGroup", "stubborn")
    side.rpc("supervisor.signalProcess", "stubborn", "CONT")
    side.rpc("supervisor.removeProcessGroup", "stubborn")
    side.ctl("status", "stubborn")
    side.ctl("start", "stubborn")


def leaving_slowly(side: Side) -> None:
    side.rpc("supervisor.startProcess", "slow")
    pid = side.call("supervisor.getProcessInfo", "slow")["pid"]
    side.ctl("shutdown")
    side.until(lambda: not side.serves("supervisor.clearLog"), "it leaves")
    side.ctl("shutdown")
    side.ctl("status", "slow")
    side.rpc("supervisor.getState")
    side.rpc("supervisor.startProcess", "off")
    side.rpc("supervisor.reloadConfig")
    side.rpc("system.methodSignature", "supervisor.getPID")
    side.ctl("reload")
    side.ctl("update")
    os.kill(pid, signal.SIGKILL)
    side.until_gone()


def reconfiguring(side: Side) -> None:
    settle(side)
    side.ctl("reread")
    side.ctl("update")
    side.ctl("add", "job", "nope")
    side.ctl("remove", "job", "nope")
    added = PROGRAMS + "[program:fresh]\ncommand=/bin/sleep 100000\n"
    side.write(added.replace("[program:off]\ncommand=/bin/sleep 100000", "[program:off]\ncommand=/bin/sleep 1001"))
    side.ctl("reread")
    side.rpc("supervisor.reloadConfig")
    side.ctl("avail")
    side.ctl("add", "fresh")
    side.until_state("fresh", "RUNNING")
    side.ctl("remove", "off")
    side.ctl("status", "off", "fresh")
    side.ctl("add", "off")
    side.ctl("update")
    side.write(PROGRAMS)
    side.ctl("update", "fresh")
    side.ctl("update")
    side.ctl("update", "nope")
    side.write(PROGRAMS + "[program:broken]\nautostart=maybe\n")
    side.rpc("supervisor.reloadConfig")


def grouping(side: Side) -> None:
    settle(side)
    for names in (["g:*"], ["w:"], ["w"], ["early"], ["g:early", "w:w_04"], ["w:w_05"]):
        side.ctl("status", *names)
    side.ctl("start", "g:*", "w:w_04")
    side.ctl("start", "w:*")
    side.ctl("start", "early", "g:nope", "w")
    side.until_log("g:early", "g early")
    side.ctl("status", "g:*", "w:*")
    side.ctl("tail", "g:early")
    side.ctl("signal", "CONT", "g:*")
    side.ctl("clear", "g:early")
    side.ctl("pid", "g:late", "w:w_03")
    side.rpc("supervisor.getProcessInfo", "g:early")
    side.rpc("supervisor.getProcessInfo", "g:*")
    side.rpc("supervisor.getProcessInfo", "early")
    side.rpc("supervisor.stopProcessGroup", "w")
    side.rpc("supervisor.startProcessGroup", "w")
    side.rpc("supervisor.startProcess", "w:w_03")
    side.rpc("supervisor.startProcess", "w")
    side.rpc("supervisor.addProcessGroup", "g")
    side.rpc("supervisor.removeProcessGroup", "g")
    side.rpc("supervisor.removeProcessGroup", "early")
    side.ctl("restart", "g:*")
    side.ctl("stop", "g:*", "w:*")
    side.ctl("remove", "w")
    side.ctl("avail")
    side.write(PROGRAMS.replace("numprocs=2", "numprocs=3").replace("programs=early,late", "programs=late"))
    side.rpc("supervisor.reloadConfig")
    side.ctl("add", "w")
    side.ctl("reread")
    side.ctl("update")
    side.ctl("status", "g:*", "w:*", "early")


def leaving(side: Side) -> None:
    settle(side)
    pid = side.call("supervisor.getPID")
    side.ctl("reload")
    side.until(side.answers, "the daemon is back")
    settle(side)
    side.ctl("status", "job", "off")
    assert side.call("supervisor.getPID") == pid
    side.ctl("shutdown")
    side.until_gone()
    side.ctl("shutdown")
    side.ctl("status")
    side.ctl("start", "job")


SCRIPTS: tuple[Script, ...] = (
    looking,
    starting_and_stopping,
    signalling,
    reading_logs,
    describing,
    calling,
    feeding,
    typing,
    waiting,
    leaving_slowly,
    reconfiguring,
    grouping,
    leaving,
    remote,
)
FATAL = " " * 28 + "FATAL     "
ENDED = (
    "bad                              EXITED    DATE",
    "bad                              EXITED    DATE, exit status 4",
)
SAYS_HOW = "how it ended is what one wants to know"
TOO_QUICKLY = "Exited too quickly (process log may have details)"
GAVE_UP = "1 failure (crash) without staying up: exited too quickly: exit status 3"
NO_SUCH_COMMAND = (
    "cannot start missing: there is no command '/nonexistent/program'; install it, or give its full path; "
    "to be done by the host's operator: correct its command or directory, or their rights"
)
NOT_UTF8 = "bytes that are no UTF-8 are replaced: an error tells nothing of the log"
NOT_A_FAULT = "a wrong argument is a fault that says so, not an error of the daemon's"
OWN_VERSION = "it is another program"
WAITS = "a flush takes minutes: nobody should have to ask twice"
READABLE = "the last flush can be watched"
SHUTDOWN_ERROR = "error: <class 'xmlrpc.client.Fault'>, <Fault 6: 'SHUTDOWN_STATE'>: file: F line: N"
STOPPED = " " * 28 + "STOPPED   "
FOR_PROGRAMS = "what goes wrong is said to programs; there are no pages for people here"
KNOWN_FAILED = "a start that can't work is an attempt like any other"

INTENDED: dict[Script, list[Difference]] = {
    looking: [
        Difference("ctl status", *ENDED, SAYS_HOW),
        Difference("ctl version", "4.3.0", __version__, OWN_VERSION),
    ],
    starting_and_stopping: [
        Difference("ctl status", f"crash{FATAL}{TOO_QUICKLY}", f"crash{FATAL}{GAVE_UP}", SAYS_HOW),
        Difference(
            "ctl status",
            f"missing{' ' * 26}STOPPED   Not started",
            f"missing{' ' * 26}FATAL     {NO_SUCH_COMMAND}",
            KNOWN_FAILED,
        ),
        Difference("description", TOO_QUICKLY, GAVE_UP, SAYS_HOW),
        Difference("spawnerr", TOO_QUICKLY, GAVE_UP, SAYS_HOW),
        Difference("exitstatus", 0, 3, SAYS_HOW),
    ],
    reading_logs: [
        Difference("rpc supervisor.tailProcessLog", "HTTP 500", ["\N{REPLACEMENT CHARACTER}\n", 10, True], NOT_UTF8),
        Difference(
            "rpc supervisor.tailProcessStdoutLog", "HTTP 500", ["\N{REPLACEMENT CHARACTER}\n", 10, True], NOT_UTF8
        ),
    ],
    describing: [
        Difference("spawnerr", "Bad exit code 4", "exit status 4", SAYS_HOW),
        Difference("description", "DATE", "DATE, exit status 4", SAYS_HOW),
        Difference("rpc supervisor.getSupervisorVersion", "4.3.0", __version__, OWN_VERSION),
    ],
    calling: [
        Difference("rpc supervisor.startProcess", "HTTP 500", "Fault 2 INCORRECT_PARAMETERS", NOT_A_FAULT),
        Difference("rpc system.multicall", "HTTP 500", ["Fault 2 INCORRECT_PARAMETERS"], NOT_A_FAULT),
    ],
    waiting: [
        Difference(
            "ctl status",
            f"flaky{STOPPED}DATE",
            f"flaky{STOPPED}DATE, exited too quickly: exit status 3",
            SAYS_HOW,
        ),
        Difference("ctl start", "stubborn: ERROR (abnormal termination)", "stubborn: started", WAITS),
        Difference("ctl start", 7, 0, WAITS),
    ],
    leaving_slowly: [
        Difference("ctl status", SHUTDOWN_ERROR, f"slow{' ' * 29}STOPPING  ", READABLE),
        Difference("ctl status", 1, 0, READABLE),
        Difference(
            "rpc supervisor.getState",
            "Fault 6 SHUTDOWN_STATE",
            {"statecode": -1, "statename": "SHUTDOWN"},
            READABLE,
        ),
    ],
    feeding: [Difference("ctl", *ENDED, SAYS_HOW)],
    typing: [
        Difference("ctl", *ENDED, SAYS_HOW),
        Difference("ctl -i", *ENDED, SAYS_HOW),
        Difference("ctl open", *ENDED, SAYS_HOW),
    ],
    remote: [
        Difference("ctl -s", *ENDED, SAYS_HOW),
        *(
            Difference(f"get {path}", "text/html", "application/json; charset=utf-8", FOR_PROGRAMS)
            for path in ("/RPC2", "/logtail/nope", "/nowhere")
        ),
    ],
}


CRASHED = (f"crash{FATAL}{TOO_QUICKLY}", f"crash{FATAL}{GAVE_UP}")
MISSING = (f"missing{' ' * 26}STOPPED   Not started", f"missing{' ' * 26}FATAL     {NO_SUCH_COMMAND}")
WORST = "the worst result counts"
UNKNOWN_NAME = "an unknown name is always 1"
NOT_THERE = "what can't be shown is no success"
NO_SOCKET = "one status for all actions but `status`"
UNKNOWN_USER = (
    [
        1,
        "Server requires authentication",
        "error: <class 'xmlrpc.client.ProtocolError'>, <ProtocolError for 127.0.0.1/RPC2: 401 Unauthorized>: "
        "file: F line: N",
    ],
    [1, "Server requires authentication; give user name and password with -u and -p, or in [supervisorctl]"],
)
WRONG_LOGIN = (UNKNOWN_USER[0], [1, UNKNOWN_USER[1][1].replace("; ", "; this login is wrong; ")])
NO_TRACEBACK = "the remedy helps"
BY_PROGRAM = "the others in its group keep running"

OF_OUR_CLIENT: dict[Script, list[Difference]] = {
    looking: [
        Difference("ctl status", *ENDED, SAYS_HOW),
        Difference("ctl status", 3, 4, WORST),
        Difference("ctl version", "4.3.0", __version__, OWN_VERSION),
    ],
    starting_and_stopping: [
        Difference("ctl start", 2, 1, UNKNOWN_NAME),
        Difference("ctl status", *CRASHED, SAYS_HOW),
        Difference("ctl status", *MISSING, KNOWN_FAILED),
    ],
    signalling: [Difference("ctl signal", 1, 7, WORST)],
    reading_logs: [
        Difference("ctl tail", "==> Press Ctrl-C to exit <==", "nope: ERROR (no such process name)", NOT_THERE),
        Difference("ctl tail", 0, 1, NOT_THERE),
    ],
    feeding: [Difference("ctl", *ENDED, SAYS_HOW)],
    typing: [
        Difference("ctl", *ENDED, SAYS_HOW),
        Difference("ctl -i", *ENDED, SAYS_HOW),
        Difference("ctl open", *ENDED, SAYS_HOW),
        Difference("ctl open", 0, 4, NOT_THERE),
    ],
    waiting: [
        Difference(
            "ctl status", f"flaky{STOPPED}DATE", f"flaky{STOPPED}DATE, exited too quickly: exit status 3", SAYS_HOW
        ),
        Difference("ctl start", "stubborn: ERROR (abnormal termination)", "stubborn: started", WAITS),
        Difference("ctl start", 7, 0, WAITS),
    ],
    leaving_slowly: [
        Difference("ctl status", SHUTDOWN_ERROR, f"slow{' ' * 29}STOPPING  ", READABLE),
        Difference("ctl status", 1, 0, READABLE),
    ],
    grouping: [
        Difference("ctl reread", "g: changed", "g:early: disappeared", BY_PROGRAM),
        Difference(
            "ctl status",
            f"g:late{' ' * 27}STOPPED   Not started",
            f"g:late{' ' * 27}STOPPED   DATE",
            BY_PROGRAM,
        ),
        Difference("ctl update", "early: added process group", "g:early: removed process", BY_PROGRAM),
        Difference("ctl update", "g: stopped", "early: added process group", BY_PROGRAM),
        Difference("ctl update", "g: updated process group", "g:early: stopped", BY_PROGRAM),
    ],
    leaving: [Difference("ctl shutdown", 1, 7, NO_SOCKET)],
    remote: [
        Difference("ctl -s", *ENDED, SAYS_HOW),
        Difference("ctl -s", *UNKNOWN_USER, NO_TRACEBACK),
        Difference("ctl -s", *WRONG_LOGIN, NO_TRACEBACK),
    ],
}
"""The same for our client with our daemon, beside the stock client with the stock daemon."""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_clients_see_the_same_as_under_supervisor(script: Script, tmp_path: Path):
    try:
        binaries = peer.binaries()
    except peer.NotInstalled as error:
        pytest.skip(str(error))
    stock_ctl = (str(binaries / "supervisorctl"),)
    commands = {
        "stock": (stock_daemon(binaries), stock_ctl),
        "ours": (our_daemon(), stock_ctl),
        "own": (our_daemon(), our_ctl()),
    }
    stock, ours, own = (
        Side(tmp_path / name, *command, PROGRAMS, free_port() if script is remote else None)
        for name, command in commands.items()
    )

    play(script, stock, ours, own)

    found = differences(stock, ours, stock.outcomes)
    assert found == intended(INTENDED, script), pformat(found, width=110)
    asked = [step for step in stock.outcomes if step.startswith("ctl") and not step.startswith("ctl help")]
    found = differences(stock, own, asked, without_help)
    assert found == intended(OF_OUR_CLIENT, script), pformat(found, width=110)


def differences(
    stock: Side, other: Side, steps: Iterable[str], seen: Callable[[Any], Any] = lambda outcome: outcome
) -> list[tuple[str, Any, Any]]:
    """What is not the same in what is `seen` of it, each once, sorted."""
    found = [
        each
        for step in steps
        for each in differing(
            " ".join(step.replace(" again", "").split()[:2]), seen(stock.outcomes[step]), seen(other.outcomes[step])
        )
    ]
    return sorted((each for number, each in enumerate(found) if each not in found[:number]), key=repr)


def without_help(outcome: Any) -> Any:
    """The outcome of a client's step without how the action is used, which follows a mistake in its arguments."""
    is_mistake = len(outcome) > 2 and str(outcome[1]).startswith("Error: ")
    return outcome[:2] if is_mistake else outcome


def intended(listed: dict[Script, list[Difference]], script: Script) -> list[tuple[str, Any, Any]]:
    return sorted(((each.where, each.stock, each.ours) for each in listed.get(script, [])), key=repr)
