"""reread, update, reload, shutdown, and what is said when nobody answers."""

import contextlib
import errno
import http.server
import socket
import subprocess
import sys
import threading

import pytest

from supervisor.ctl.main import main
from tests.ctl.conftest import CTL
from tests.ctl.daemon_end import Fault, program
from tests.waiting import wait_until


@pytest.mark.integration
def test_reread_says_what_is_different_by_name(daemon, ctl):
    daemon.answers["reread"] = {"added": ["b"], "changed": ["a"], "removed": ["c"]}

    assert ctl("reread").out == "a: changed\nb: available\nc: disappeared\n"


@pytest.mark.integration
def test_reread_without_differences(daemon, ctl):
    daemon.answers["reread"] = {"added": [], "changed": [], "removed": []}

    assert ctl("reread").out == "No config updates to processes\n"


@pytest.mark.integration
def test_an_unusable_configuration_is_shown_whole(daemon, ctl):
    daemon.answers["reread"] = Fault("CANT_REREAD", "a.conf:1: one\na.conf:2: two")

    result = ctl("reread")

    assert (result.out, result.status) == ("ERROR: CANT_REREAD: a.conf:1: one\na.conf:2: two\n", 1)


@pytest.mark.integration
def test_update_tells_what_was_done(daemon, ctl):
    steps = [("a", "stopped"), ("a", "updated"), ("b", "removed"), ("c", "added")]
    daemon.answers["update"] = {"actions": [{"name": name, "action": action} for name, action in steps]}

    result = ctl("update")

    assert result.out.splitlines() == [
        "a: stopped",
        "a: updated process group",
        "b: removed process group",
        "c: added process group",
    ]
    assert daemon.asked == [("update", {})]


@pytest.mark.integration
@pytest.mark.parametrize("action", ["reread", "update"])
def test_remarks_are_told_beside_the_result(daemon, ctl, action: str):
    daemon.answers["reread"] = {"added": [], "changed": [], "removed": [], "remarks": ["a.conf:3: x\x1b is ignored"]}
    daemon.answers["update"] = {"actions": [], "remarks": ["a.conf:3: x\x1b is ignored"]}

    result = ctl(action)

    assert result.err == "remark: a.conf:3: x\x1b is ignored\n"
    assert "remark" not in result.out
    assert result.status == 0


@pytest.mark.integration
def test_update_of_some_names_them(daemon, ctl):
    daemon.answers["update"] = {"actions": []}

    assert ctl("update", "a", "b").out == ""
    assert daemon.asked == [("update", {"names": ["a", "b"]})]


@pytest.mark.integration
def test_update_of_an_unknown_name_fails(daemon, ctl):
    daemon.answers["update"] = Fault("BAD_NAME", "x")

    result = ctl("update", "x")

    assert (result.out, result.status) == ("ERROR: no such group: x\n", 1)


@pytest.mark.integration
@pytest.mark.parametrize(("action", "line"), [("shutdown", "Shut down"), ("reload", "Restarted supervisord")])
def test_leaving_says_so(daemon, ctl, action, line):
    daemon.answers[action] = {}

    assert ctl(action).out == f"{line}\n"


@pytest.mark.integration
def test_a_second_shutdown_is_no_failure(daemon, ctl):
    daemon.answers["shutdown"] = Fault("SHUTDOWN_STATE", "", 503)

    result = ctl("shutdown")

    assert (result.out, result.status) == ("ERROR: already shutting down\n", 0)


@pytest.mark.parametrize(("action", "status"), [("status", 4), ("pid", 7), ("start", 7), ("avail", 7)])
def test_a_missing_socket_is_named(tmp_path, capsys, action, status):
    url = f"unix://{tmp_path}/none.sock"

    result = main(["-s", url, action, *(["a"] if action == "start" else [])])

    assert (capsys.readouterr().out, result) == (f"{url} no such file\n", status)


def test_a_dead_socket_refuses_the_connection(tmp_path, capsys):
    path = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))

    status = main(["-s", f"unix://{path}", "version"])

    assert (capsys.readouterr().out, status) == (f"unix://{path} refused connection\n", 4)


def test_shutdown_of_a_daemon_that_is_gone_asks_whether_it_is(tmp_path, capsys):
    url = f"unix://{tmp_path}/none.sock"

    main(["-s", url, "shutdown"])

    assert capsys.readouterr().out == f"ERROR: {url} no such file (already shut down?)\n"


@pytest.mark.integration
def test_a_daemon_that_fails_inside_points_to_its_log(daemon, ctl):
    daemon.answers["version"] = lambda _: 1 / 0  # HTTP 500 with a page that is no JSON

    result = ctl("version")

    assert "failed to answer (HTTP 500); see its log" in result.out
    assert result.status == 1


def test_another_server_is_recognised(capsys):
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        server.RequestHandlerClass = type("Quiet", (http.server.BaseHTTPRequestHandler,), {"do_POST": _not_found})
        threading.Thread(target=server.handle_request, daemon=True).start()
        status = main(["-s", f"http://127.0.0.1:{server.server_port}", "version"])

    assert "answers with HTTP 404, not as stepkeeper's supervisord does" in capsys.readouterr().out
    assert status == 1


def _not_found(request):
    request.rfile.read(int(request.headers["Content-Length"]))
    request.log_message = lambda *_: None
    request.send_error(404)


@pytest.mark.integration
def test_a_reader_that_leaves_early_causes_no_traceback(daemon):
    daemon.answers["status"] = {"programs": [program(f"p{number}") for number in range(5000)]}

    command = " ".join([*CTL, "-s", daemon.url, "status"])
    result = subprocess.run(f"{command} | head -1", shell=True, capture_output=True, text=True, timeout=60, check=False)

    assert result.stdout.startswith("p0 ")
    assert result.stderr == ""


@pytest.mark.integration
def test_a_simple_question_loads_no_heavy_library(daemon):
    code = (
        "import sys\nfrom supervisor.ctl.main import main\n"
        f"main(['-s', {daemon.url!r}, 'pid'])\n"
        "print(sorted({'asyncio', 'h11', 'pydantic', 'rich', 'structlog'} & sys.modules.keys()))"
    )
    daemon.answers["pid"] = {"pid": 1}

    asked = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)

    assert asked.stdout == "1\n[]\n"


def test_a_full_queue_of_the_daemon_is_waited_for(tmp_path, capsys):
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as others:
        listener.bind(str(path))
        listener.listen(0)
        queued = 0
        while True:
            other = others.enter_context(socket.socket(socket.AF_UNIX))
            other.setblocking(False)
            if other.connect_ex(str(path)) == errno.EAGAIN:
                break
            queued += 1
        asking = threading.Thread(target=main, args=(["-s", f"unix://{path}", "pid"],))
        asking.start()
        wait_until(lambda: sys._current_frames()[asking.ident].f_code.co_name == "connect", "it finds the queue full")
        for _ in range(queued):
            others.enter_context(listener.accept()[0])
        connection = others.enter_context(listener.accept()[0])
        assert b"POST" in connection.recv(65536)
        connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 22\r\n\r\n{"result": {"pid": 1}}')
        asking.join(20)

    assert capsys.readouterr().out == "1\n"
