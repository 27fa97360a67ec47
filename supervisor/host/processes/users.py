"""Who programs run as: the password database, which may be a slow server's, is asked in threads, and nobody waits long.

Called from the event loop's thread only.
"""

import asyncio
import threading
from concurrent.futures import Future

from supervisor.host.processes.spawning import Credentials, SpawnError, credentials

ANSWERS_WITHIN_S = 5.0  # as long as a resolver waits for a name server
GLANCE_S = 0.05  # files and local caches answer within a millisecond; longer would be felt by all programs

_asked: dict[str, Future[Credentials]] = {}
"""By name or number of a user: the question that is not answered yet. The host has one database, whoever asks."""
_known: dict[str, Credentials | SpawnError] = {}
"""The last answers."""


async def ask(user: str) -> None:
    """Returns once it is answered, or after ANSWERS_WITHIN_S: a start that follows has something to go on."""
    try:
        await asyncio.wait_for(asyncio.wrap_future(_ask(user)), ANSWERS_WITHIN_S)
    except TimeoutError:
        text = f"cannot run as {user}: the password database has not answered for {ANSWERS_WITHIN_S:g} s"
        _known.setdefault(user, SpawnError(f"{text}; it is tried again", permanent=False))
    except (SpawnError, RuntimeError, OSError):
        return  # whoever starts it hears of it


def credentials_of(user: str) -> Credentials:
    """The same as `credentials`, or the last answer where the database does not give one at once. Raises SpawnError."""
    try:
        is_slow = user in _asked
        return _ask(user).result(0 if is_slow else GLANCE_S)
    except TimeoutError:
        known = _known.get(user)
    except RuntimeError:  # the host has no thread to spare
        known = _known.get(user) or credentials(user)
    if isinstance(known, Credentials):
        return known
    if known is None:
        known = SpawnError(f"cannot run as {user}: the password database is slow; it is tried again", permanent=False)
    raise SpawnError(str(known), permanent=known.permanent)


def _ask(user: str) -> Future[Credentials]:
    """The answer to be. Raises RuntimeError if there is no thread for it."""
    answer = _asked.get(user)
    if answer is None:
        answer = _asked[user] = Future()
        answer.set_running_or_notify_cancel()  # who waits no longer can't take it back
        try:
            threading.Thread(target=_answer, args=(user, answer), name="users", daemon=True).start()
        except RuntimeError:
            del _asked[user]
            raise
    return answer


def _answer(user: str, answer: Future[Credentials]) -> None:
    try:
        found = _known[user] = credentials(user)
    except Exception as error:  # noqa: BLE001 - it is raised where it is waited for
        if isinstance(error, SpawnError):
            _known[user] = error
        del _asked[user]
        answer.set_exception(error)
    else:
        del _asked[user]
        answer.set_result(found)
