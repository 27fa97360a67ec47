"""Coming in by TCP and by password: with a real daemon, and clients that are not ours."""

import base64
import contextlib
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import time
import xmlrpc.client
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import peer
from supervisor.config.schema.secret import Secret, hash_password
from supervisor.control.http.access import (
    GUESS_EVERY_S,
    MAX_GUESSES,
    GuessLimit,
    MalformedCredentials,
    TooManyGuesses,
    _credentials,
)
from supervisor.control.listening_sockets import ListenError, SocketFile, listen_on_file
from supervisor.host.peers import SO_PASSRIGHTS
from tests.fuzzing import cases
from tests.system.both import PEER_ENVIRONMENT
from tests.system.harness import Daemon, Refused, let_others_in
from tests.waiting import wait_until

SLEEPER = "[program:sleeper]\ncommand=/bin/sleep 100000\n"


def free_port() -> int:
    """Below the range that outgoing connections take theirs from, so that none takes it meanwhile."""
    for port in random.sample(range(12_000, 30_000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("every port is taken")


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory):
    """The port of a daemon that asks for a login."""
    folder, port = tmp_path_factory.mktemp("endpoints"), free_port()
    inet = f"[inet_http_server]\nport=127.0.0.1:{port}\nusername=ann\npassword={hash_password('let: me in')}\n"
    with Daemon(folder, SLEEPER + inet) as daemon:
        daemon.until_state("sleeper", "RUNNING")
        yield port


def ask(port: int, path: str = "/api/v1/status", **headers: str) -> tuple[int, http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("POST", path, b"{}", headers)
    answer = connection.getresponse()
    return answer.status, answer, answer.read()


def basic(username: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


@pytest.mark.integration
def test_the_login_admits_to_everything(locked):
    status, _, body = ask(locked, Authorization=basic("ann", "let: me in"))
    changed, _, _ = ask(locked, "/api/v1/reread", Authorization=basic("ann", "let: me in"))

    assert (status, json.loads(body)["result"]["programs"][0]["name"], changed) == (200, "sleeper", 200)


@pytest.mark.integration
@pytest.mark.parametrize("header", [None, basic("ann", "no"), basic("bob", "let: me in"), basic("", "")])
@pytest.mark.parametrize("path", ["/api/v1/status", "/RPC2", "/elsewhere"])
def test_without_the_login_nothing_is_told(locked, header, path):
    status, answer, body = ask(locked, path, **({"Authorization": header} if header else {}))

    assert (status, answer.getheader("WWW-Authenticate")) == (401, 'Basic realm="default"')
    assert answer.getheader("Connection") == "close"
    assert b"sleeper" not in body


@pytest.mark.integration
@pytest.mark.parametrize("header", ["Basic !!!", "Basic", "Bearer x", f"Basic {base64.b64encode(b'nocolon').decode()}"])
def test_a_header_that_is_no_login_is_a_bad_request(locked, header):
    status, _, body = ask(locked, Authorization=header)

    assert (status, json.loads(body)["error"]["code"]) == (400, "BAD_ARGUMENTS")


@pytest.mark.integration
def test_xmlrpc_client_comes_in_by_its_url(locked):
    with xmlrpc.client.ServerProxy(f"http://ann:let%3A%20me%20in@127.0.0.1:{locked}/RPC2") as server:
        assert server.supervisor.getProcessInfo("sleeper")["statename"] == "RUNNING"  # type: ignore[index]


@pytest.mark.integration
def test_supervisorctl_comes_in_and_is_told_when_it_does_not(locked):
    def ctl(*login: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "supervisor.ctl.main", "-s", f"http://127.0.0.1:{locked}", *login]
        return subprocess.run([*command, "status"], capture_output=True, text=True, timeout=60, check=False)

    good, bad, wrong = ctl("-u", "ann", "-p", "let: me in"), ctl(), ctl("-u", "ann", "-p", "let me in")

    assert "RUNNING" in good.stdout
    assert "Server requires authentication; give user name and password with -u and -p" in bad.stdout + bad.stderr
    assert "; this login is wrong; give user name and password" in wrong.stdout + wrong.stderr
    assert (bad.returncode, wrong.returncode) == (1, 1)


@pytest.mark.integration
def test_the_stock_client_comes_in_by_tcp(locked):
    try:
        binaries = peer.binaries()
    except peer.NotInstalled as error:
        pytest.skip(str(error))
    command = [binaries / "supervisorctl", "-s", f"http://127.0.0.1:{locked}", "-u", "ann", "-p", "let: me in"]

    asked = subprocess.run(
        [*command, "status"], env=PEER_ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False
    )

    assert asked.stdout.startswith("sleeper                          RUNNING")


@pytest.mark.integration
@pytest.mark.parametrize("written", ["plain", "{SHA}68c46e84d76d2e7e686e5158bf598909abd4e45b"])
def test_a_login_on_the_unix_socket_is_asked_of_its_owner_too(tmp_path: Path, written: str):
    daemon = Daemon(tmp_path, f"{SLEEPER}[unix_http_server]\nusername=ann\npassword={written}\n")
    daemon.headers = {"Authorization": basic("ann", "plain")}

    with daemon:
        daemon.until_state("sleeper", "RUNNING")
        daemon.headers = {}
        with pytest.raises(Refused, match="UNAUTHORIZED"):
            daemon.call("status")


@pytest.mark.integration
def test_without_a_login_only_names_of_this_host_are_served(tmp_path: Path):
    port = free_port()

    with Daemon(tmp_path, f"{SLEEPER}[inet_http_server]\nport=127.0.0.1:{port}\n"):
        statuses = [
            ask(port, Host=host)[0] for host in (f"localhost:{port}", "127.0.0.1", "[::1]:1", "rebound.example")
        ]

    assert statuses == [200, 200, 200, 403]


@pytest.mark.integration
def test_host_in_an_absolute_target_counts_instead_of_the_header(tmp_path: Path):
    port = free_port()

    with Daemon(tmp_path, f"{SLEEPER}[inet_http_server]\nport=127.0.0.1:{port}\n"):
        statuses = [
            ask(port, f"http://{host}/api/v1/status", Host="localhost")[0] for host in ("localhost", "rebound.example")
        ]

    assert statuses == [200, 403]


LOGIN = "username=ann\npassword=secret\n"


def status_of(endpoint: Path | int, path: str, **headers: str) -> int:
    """What a request is answered with; `endpoint`: a socket's file or a port."""
    connection = http.client.HTTPConnection("127.0.0.1", endpoint if isinstance(endpoint, int) else None, timeout=20)
    if isinstance(endpoint, Path):
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(endpoint))
    connection.request("POST", path, b"{}", headers)
    return connection.getresponse().status


@pytest.mark.integration
@pytest.mark.parametrize("locked_first", [True, False])
def test_each_endpoint_demands_its_own_login_only(tmp_path: Path, locked_first: bool):
    files = {"open": tmp_path / "open.sock", "locked": tmp_path / "locked.sock"}
    ports = {"open": free_port(), "locked": free_port()}
    order = ("locked", "open") if locked_first else ("open", "locked")
    logins = {"open": "", "locked": LOGIN}
    sections = [f"[unix_http_server:{name}]\nfile={files[name]}\n{logins[name]}" for name in order]
    sections += [f"[inet_http_server:{name}]\nport=127.0.0.1:{ports[name]}\n{logins[name]}" for name in order]

    with Daemon(tmp_path, SLEEPER + "".join(sections)):
        for kind in (files, ports):
            for path in ("/api/v1/status", "/api/v1/reread", "/RPC2"):
                refused = status_of(kind["locked"], path)
                assert refused == 401, f"{kind['locked']}{path} needs no login"
                assert status_of(kind["locked"], path, Authorization=basic("ann", "secret")) != 401
                assert status_of(kind["open"], path) != 401, f"{kind['open']}{path} needs the other's login"
        by_name = {name: status_of(ports[name], "/openapi.json", Host="rebound.example") for name in order}

    assert by_name == {"open": 403, "locked": 401}


needs_ipv6 = pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this host has no IPv6")


@pytest.mark.integration
@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("[::1]", marks=needs_ipv6)])
def test_programs_are_told_an_address_that_is_a_url(tmp_path: Path, host: str):
    conf, shown, address = tmp_path / "a.conf", tmp_path / "told", f"{host}:{free_port()}"
    tell = f"[program:p]\ncommand=/bin/sh -c 'echo $SUPERVISOR_SERVER_URL >{shown}'\nstartsecs=0\nautorestart=false\n"
    conf.write_text(f"[supervisord]\nnotices=off\nexit_on=done\n[inet_http_server]\nport={address}\n{tell}")

    subprocess.run([sys.executable, "-m", "supervisor.daemon", "-n", "-c", str(conf)], timeout=60, check=True)

    assert shown.read_text() == f"http://{address}\n"


@pytest.mark.integration
def test_an_address_that_is_taken_is_named(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        daemon = Daemon(tmp_path, f"[inet_http_server]\nport={port}\nusername=a\npassword=b\n")
        with pytest.raises(AssertionError, match="exited with 71"):
            daemon.start()

    assert f"cannot listen on *:{port}: Address already in use; stop the program that listens there" in daemon.errors()


@pytest.mark.fuzz
@cases(100)
@given(st.text(max_size=40) | st.binary(max_size=40).map(lambda raw: "Basic " + base64.b64encode(raw).decode()))
def test_any_header_is_a_login_or_malformed(header):
    with contextlib.suppress(MalformedCredentials):
        assert len(_credentials(header)) == 2


@pytest.mark.fuzz
@cases(100)
@given(st.text(max_size=12), st.sampled_from(["{SCRYPT}", "{SHA}", ""]))
def test_any_text_is_a_password_or_refused(text, form):
    with contextlib.suppress(ValueError):
        assert repr(Secret(form + text)) == "Secret(…)"


@pytest.mark.thorough
def test_a_hashed_password_is_itself_and_no_other():
    hashed = hash_password("grün")
    secret = Secret(hashed)

    assert secret.matches("grün")
    assert not secret.matches("grun")
    assert hash_password("grün") != hashed


@pytest.mark.integration
def test_supervisord_hashes_what_it_is_given():
    command = [sys.executable, "-m", "supervisor.daemon", "--hash-password"]

    made = subprocess.run(command, input="secret\n", capture_output=True, text=True, timeout=60, check=True)

    assert Secret(made.stdout.strip()).matches("secret")


@pytest.mark.integration
def test_a_password_that_is_not_utf_8_is_refused():
    command = [sys.executable, "-m", "supervisor.daemon", "--hash-password"]

    made = subprocess.run(command, input=b"gr\xfcn\n", capture_output=True, timeout=60, check=False)

    assert (made.returncode, made.stdout) == (1, b"")
    assert made.stderr == b"the password is not UTF-8, in which clients send it; write it in UTF-8\n"


@pytest.mark.integration
def test_right_password_is_not_delayed_by_guesses_from_another_address(tmp_path: Path) -> None:
    port = free_port()
    inet = f"[inet_http_server]\nport=127.0.0.1:{port}\nusername=ann\npassword={hash_password('let: me in')}\n"

    def guess(source: str, password: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20, source_address=(source, 0))
        connection.request("POST", "/api/v1/status", b"{}", {"Authorization": basic("ann", password)})
        return connection.getresponse().status

    with Daemon(tmp_path, SLEEPER + inet), ThreadPoolExecutor(50) as threads:
        guesses = [threads.submit(guess, "127.0.0.2", f"guess {number}") for number in range(200)]
        wait_until(lambda: any(guess.done() for guess in guesses), "the first guess is answered")
        status = guess("127.0.0.1", "let: me in")  # or it times out
        statuses = [guess.result() for guess in guesses]

    assert status == 200
    assert set(statuses) == {401, 429}
    assert statuses.count(401) <= MAX_GUESSES + 30  # and one more every two seconds: the others cost no hash


def test_wrong_guesses_of_one_client_are_forgiven_slowly() -> None:
    limit = GuessLimit()
    for _ in range(MAX_GUESSES):
        limit.check("a", 100.0)
        limit.count("a", 100.0)

    with pytest.raises(TooManyGuesses):
        limit.check("a", 100.0 + GUESS_EVERY_S / 2)
    limit.check("b", 100.0)
    limit.check("a", 100.0 + GUESS_EVERY_S)


def test_right_guesses_cost_nothing() -> None:
    limit = GuessLimit()
    for _ in range(10 * MAX_GUESSES):
        limit.check("a", 100.0)
        limit.count("a", 100.0)
        limit.forgive("a")


def test_descriptors_that_a_client_attaches_are_refused_by_the_kernel(tmp_path: Path):
    with listen_on_file(tmp_path / "s.sock", 0o600, None) as listener, socket.socket(socket.AF_UNIX) as client:
        if not takes_no_descriptors(listener):
            pytest.skip("before Linux 6.16 no socket can refuse them")
        client.connect(str(tmp_path / "s.sock"))

        with pytest.raises(PermissionError):
            socket.send_fds(client, [b"GET / HTTP/1.1"], [0])


def test_a_link_in_the_place_of_the_socket_is_not_followed(tmp_path: Path):
    path, other = tmp_path / "s.sock", tmp_path / "other.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(other))
        listener.listen()
        listener.setblocking(False)
        path.symlink_to(other)

        listen_on_file(path, 0o600, None).close()

        with pytest.raises(BlockingIOError):
            listener.accept()
        assert path.is_socket()
        assert not path.is_symlink()


def test_a_socket_on_which_another_program_listens_stays(tmp_path: Path):
    path = tmp_path / "s.sock"
    with listen_on_file(path, 0o600, None), pytest.raises(ListenError, match="another program listens there"):
        listen_on_file(path, 0o600, None)

    listen_on_file(path, 0o600, None).close()


def takes_no_descriptors(listener: socket.socket) -> bool:
    try:
        listener.getsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS)
    except OSError:
        return False
    return True


REPLACES = """
import os, sys
folder, victim = sys.argv[1:]
os.chdir(folder)
print("ready", flush=True)
while True:
    for name in os.listdir("."):
        try:
            if name.startswith(".s.sock."):
                os.rename(name, "away")
                os.symlink(victim, name)
            elif name == "s.sock":
                os.unlink(name)
        except OSError:
            pass
"""


@pytest.mark.hostile
@pytest.mark.integration
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a socket to another user")
def test_who_owns_the_sockets_folder_gets_no_other_file(tmp_path: Path) -> None:
    let_others_in(tmp_path)
    folder, victim = tmp_path / "home", tmp_path / "victim"
    folder.mkdir()
    os.chown(folder, 41001, 41001)
    victim.touch(mode=0o600)
    made = 0
    command = ["/usr/bin/python3", "-c", REPLACES, str(folder), str(victim)]
    with subprocess.Popen(command, user=41001, group=41001, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"ready\n"
        until = time.monotonic() + 2.0
        while time.monotonic() < until:
            with contextlib.suppress(ListenError):
                listen_on_file(folder / "s.sock", 0o770, (41001, 41001)).close()
                made += 1
        other.kill()

    assert made
    assert (victim.stat().st_uid, victim.stat().st_mode & 0o777) == (0, 0o600)


@pytest.mark.hostile
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a socket to another user")
def test_a_sockets_folder_that_becomes_a_link_costs_nobody_a_file(tmp_path: Path) -> None:
    let_others_in(tmp_path)
    home, others = tmp_path / "home", tmp_path / "others"
    (home / "run").mkdir(parents=True)
    for folder in (home, home / "run"):
        os.chown(folder, 41001, 41001)
    file = SocketFile(home / "run" / "s.sock", 0o700, (41001, 41001))
    file.listen().close()
    (home / "run").rename(others)
    os.chown(others, 0, 0)  # as if root had a file of that name, and of that inode, elsewhere
    (home / "run").symlink_to(others)
    os.chown(home / "run", 41001, 41001, follow_symlinks=False)

    file.close()

    assert (others / "s.sock").exists()
