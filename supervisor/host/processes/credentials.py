"""Looks up the user that a program runs as.

The password database may be on a slow server, so it is asked in threads and nobody waits long for it.
`find_credentials` blocks; the other functions are for the thread of the event loop only.
"""

import asyncio
import errno
import os
import pwd
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from supervisor.host.children import Identity
from supervisor.host.processes.spawning import SpawnError

LOOKUP_TIMEOUT_S = 5.0  # as long as a resolver waits for a name server
BLOCKING_WAIT_S = 0.05  # files and local caches answer within a millisecond; all programs would feel a longer wait


_OF_ROOTS_SESSION = frozenset({"MAIL", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "SSH_AUTH_SOCK", "XAUTHORITY"})
"""Files and sockets that only root can open: programs that find them try, and fail."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The user, primary group and supplementary groups a process runs with.

    `login`: HOME, USER and LOGNAME of that user, `own_login`: of the daemon's.
    """

    uid: int
    gid: int
    groups: tuple[int, ...]
    login: Mapping[str, str] = field(default_factory=dict, compare=False)
    own_login: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def identity(self) -> Identity:
        """What of it a process is given."""
        return Identity(self.uid, self.gid, self.groups)


def user_environment(who: Credentials | None, environment: Mapping[str, str]) -> dict[str, str]:
    """The daemon's environment for a process of another user: HOME, USER and LOGNAME become that user's own.

    One that says something else than who the daemon is was set on purpose, and stays. What leads to root's session
    goes. The rest stays too: files written for Supervisor, and containers, hand programs their settings that way.
    """
    if who is None or who.uid == os.geteuid():
        return dict(environment)
    kept = {name: value for name, value in environment.items() if name not in _OF_ROOTS_SESSION}
    of_user = {
        name: value for name, value in who.login.items() if kept.get(name, "") in ("", who.own_login.get(name, ""))
    }
    return kept | of_user


_pending: dict[str, Future[Credentials]] = {}
"""By the name or number of a user: the lookup that is not answered yet."""
_last_answers: dict[str, Credentials | SpawnError] = {}


def find_credentials(user: str) -> Credentials:
    """What a process of `user` (a name or a number) runs with.

    Raises SpawnError if there is no such user, or if this process is not root and not that user.
    """
    try:
        entry = pwd.getpwuid(int(user)) if user.isascii() and user.isdecimal() else pwd.getpwnam(user)
    except (KeyError, OverflowError) as error:
        raise SpawnError(
            f"cannot run as {user}: this host has no such user; create it, or correct `user`", permanent=True
        ) from error
    if os.geteuid() not in (0, entry.pw_uid):
        raise SpawnError(
            f"cannot run as {user}: only root can start processes of another user and this daemon runs as uid "
            f"{os.geteuid()}; start it as root, or remove `user`",
            permanent=True,
        )
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return Credentials(entry.pw_uid, entry.pw_gid, groups, _login(entry), _own_login())


def become_user(user: str) -> None:
    """Makes this process that user's, for good, with an environment as its programs have. Raises OSError.

    Where this process is that user's already, nothing changes.
    """
    try:
        who = find_credentials(user)
    except SpawnError as error:
        raise OSError(errno.EINVAL, str(error)) from error
    if who.uid == os.geteuid():
        return
    environment = user_environment(who, os.environ)
    who.identity.assume()
    os.environ.clear()
    os.environ.update(environment)


def _login(entry: pwd.struct_passwd) -> dict[str, str]:
    return {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name}


def _own_login() -> dict[str, str]:
    try:
        return _login(pwd.getpwuid(os.geteuid()))
    except KeyError:  # as in a container that runs as a number
        return {}


async def look_up(user: str, timeout_s: float = LOOKUP_TIMEOUT_S) -> None:
    """Looks the user up, so that `cached_credentials` has an answer; returns after `timeout_s` at the latest."""
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.wrap_future(_start_lookup(user))
    except TimeoutError:
        text = f"cannot run as {user}: the password database has not answered for {timeout_s:g} s"
        _last_answers.setdefault(user, SpawnError(f"{text}; it is tried again", permanent=False))
    except (SpawnError, RuntimeError, OSError):
        return  # the start that follows raises it


def cached_credentials(user: str) -> Credentials:
    """As `find_credentials`, but gives the last answer where the database does not answer at once.

    Raises SpawnError.
    """
    try:
        is_slow = user in _pending
        return _start_lookup(user).result(0 if is_slow else BLOCKING_WAIT_S)
    except TimeoutError:
        known = _last_answers.get(user)
    except RuntimeError:  # the host has no thread to spare
        known = _last_answers.get(user) or find_credentials(user)
    if isinstance(known, Credentials):
        return known
    if known is None:
        known = SpawnError(f"cannot run as {user}: the password database is slow; it is tried again", permanent=False)
    raise SpawnError(str(known), permanent=known.permanent)


def _start_lookup(user: str) -> Future[Credentials]:
    """The answer to come. Raises RuntimeError if there is no thread to look it up."""
    answer = _pending.get(user)
    if answer is None:
        answer = _pending[user] = Future()
        answer.set_running_or_notify_cancel()  # a caller that stops waiting can't cancel it
        try:
            threading.Thread(target=_run_lookup, args=(user, answer), name="users", daemon=True).start()
        except RuntimeError:
            del _pending[user]
            raise
    return answer


def _run_lookup(user: str, answer: Future[Credentials]) -> None:
    try:
        credentials = _last_answers[user] = find_credentials(user)
    except Exception as error:  # noqa: BLE001 - it is raised where the answer is awaited
        if isinstance(error, SpawnError):
            _last_answers[user] = error
        del _pending[user]
        answer.set_exception(error)
    else:
        del _pending[user]
        answer.set_result(credentials)
