"""Who programs run as, where the password database is slow: `pwd`, by which a server's answers come, is that here."""

import os
import pwd
import threading
import time
from collections.abc import Iterator
from itertools import count

import pytest

from supervisor.host.processes import credentials
from supervisor.host.processes.credentials import Credentials, cached_credentials, find_credentials, user_environment
from supervisor.host.processes.spawning import SpawnError

ME = pwd.getpwuid(os.geteuid()).pw_name
_numbers = count()


@pytest.fixture
def user() -> str:
    """A name that nobody asked for yet."""
    return f"train{next(_numbers)}"


@pytest.fixture
def slow(user: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """`user` is who runs this, but nobody hears of it until the event is set."""
    answers, asked = threading.Event(), pwd.getpwnam

    def of_a_server(name: str) -> pwd.struct_passwd:
        answers.wait(60)
        return asked(ME if name == user else name)

    monkeypatch.setattr(pwd, "getpwnam", of_a_server)
    yield answers
    answers.set()


def test_database_that_answers_at_once_is_asked_anew_for_each_start(
    user: str, slow: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow.set()
    assert cached_credentials(user) == find_credentials(ME)

    monkeypatch.setattr(os, "getgrouplist", lambda name, group: [group, 4711])

    assert cached_credentials(user).groups[-1] == 4711


def test_slow_database_holds_up_nobody_and_its_last_answer_holds(user: str, slow: threading.Event) -> None:
    slow.set()
    before = cached_credentials(user)
    slow.clear()

    began_at = time.monotonic()
    for _ in range(20):
        assert cached_credentials(user) == before
    assert time.monotonic() - began_at < 10 * credentials.BLOCKING_WAIT_S, "only the first of them looks"


async def test_start_of_a_user_that_is_not_known_in_time_is_tried_again_and_works_once_it_is(
    user: str, slow: threading.Event
) -> None:
    await credentials.look_up(user, timeout_s=0.2)

    with pytest.raises(SpawnError, match=f"cannot run as {user}: the password database has not answered") as raised:
        cached_credentials(user)
    assert not raised.value.permanent
    slow.set()
    await credentials.look_up(user)
    assert cached_credentials(user).uid == os.geteuid()


async def test_user_that_does_not_exist_is_named_at_the_start() -> None:
    await credentials.look_up("no-such-user")

    with pytest.raises(SpawnError, match="cannot run as no-such-user: this host has no such user") as raised:
        cached_credentials("no-such-user")
    assert raised.value.permanent


def test_the_environment_of_another_user_says_who_that_is() -> None:
    who = find_credentials(ME)
    other = Credentials(41001, 41001, (), {"HOME": "/home/alice", "USER": "alice", "LOGNAME": "alice"}, who.login)
    of_daemon = {**who.login, "PATH": "/bin", "SSH_AUTH_SOCK": "/root/agent", "XDG_RUNTIME_DIR": "/run/user/0"}

    assert user_environment(other, of_daemon) == {**other.login, "PATH": "/bin"}
    assert user_environment(other, {}) == other.login
    assert user_environment(other, {**of_daemon, "HOME": "/app"})["HOME"] == "/app", "it was set on purpose"
    assert user_environment(None, of_daemon) == user_environment(who, of_daemon) == of_daemon
