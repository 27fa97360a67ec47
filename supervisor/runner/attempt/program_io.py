"""How a plain program is reached besides by signals: its standard input, and the socket where it says it is ready."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from supervisor.config import ProgramConfig
from supervisor.host.pipes import stdin
from supervisor.host.pipes.control_pipes import create_empty_folder
from supervisor.host.pipes.notify import NotifyMessage, NotifySocket
from supervisor.host.pipes.stdin import Stdin
from supervisor.host.processes.spawning import SpawnError
from supervisor.host.user_folders.folder_removal import remove_soon
from supervisor.protocol import layout
from supervisor.runner.attempt.launching import check_reach, owner_ids


class ProgramIO:
    """Those of one attempt, in its folder below `runtime_dir`. `mark`: what its processes carry.

    `on_said` gets its number and its notifications.
    """

    __slots__ = ("_config", "_log", "_mark", "_notify", "_number", "_on_notification", "_runtime_dir", "_stdin")

    def __init__(
        self,
        runtime_dir: Path,
        config: ProgramConfig,
        number: int,
        mark: str,
        on_said: Callable[[int, NotifyMessage], None],
        log: FilteringBoundLogger,
    ) -> None:
        self._runtime_dir = runtime_dir
        self._config = config
        self._number = number
        self._mark = mark
        self._stdin: Stdin | None = None
        self._on_notification = on_said
        self._notify: NotifySocket | None = None
        self._log = log

    @property
    def stdin(self) -> Stdin:
        """The program's standard input. Made once it is asked for, which few programs' is."""
        if self._stdin is None:
            self._stdin = Stdin(self._folder)
        return self._stdin

    @property
    def _folder(self) -> Path:
        return layout.attempt_folder(self._runtime_dir, self._config.name, self._number)

    @property
    def notify_path(self) -> Path | None:
        """The socket's, for the program's environment; None where it has none."""
        return self._notify.path if self._notify is not None else None

    @property
    def was_ready(self) -> bool:
        """Whether the program has said that it is ready, to this daemon or an earlier one."""
        return self._notify is not None and self._notify.was_ready

    def create(self) -> int:
        """Makes them; gives what the program is to read from. Raises SpawnError or OSError with nothing left behind.

        Where no file can be made, a program that is only written to starts all the same.
        """
        owner, folder = owner_ids(self._config), self._folder
        try:
            create_empty_folder(folder, 0o711)
            reading = stdin.create_pipe(folder, owner)
        except OSError as error:
            self._log.warning("stdin.out_of_reach", folder=str(folder), error=error.strerror)
            reading = stdin.create_unnamed_pipe()
        if self._config.notify:
            try:
                check_reach(self._config, folder)
                self._notify = self._open_notify_socket(owner)
            except SpawnError:
                os.close(reading)
                self.close_and_remove()
                raise
            except OSError as error:
                os.close(reading)
                self.close_and_remove()
                raise SpawnError(
                    f"cannot listen for its readiness in {folder}: {error.strerror or error}; make runtime_dir "
                    f"writable, or point it elsewhere",
                    permanent=False,
                ) from error
        return reading

    def reopen(self, pid: int) -> None:
        """Goes on where an earlier daemon left them. One that can't be heard any more is supervised all the same."""
        if self._config.notify:
            try:
                before = (self._folder / layout.NOTIFY).lstat()  # a database of users may be away just now
                owner = None if self._config.user is None else (before.st_uid, before.st_gid)
                self._notify = self._open_notify_socket(owner)
            except OSError as error:
                self._log.warning("notify.out_of_reach", folder=str(self._folder), error=error.strerror or str(error))
        self.set_pid(pid)

    def set_pid(self, pid: int) -> None:
        """The program's process."""
        if self._notify is not None:
            self._notify.pid = pid

    def close_and_remove(self) -> None:
        """Hears what the program said last, and removes them."""
        if self._notify is not None:
            self._notify.drain()
        self.close()
        remove_soon(self._folder)

    def close(self) -> None:
        """Leaves them, as they are, to the next daemon."""
        if self._notify is not None:
            self._notify.close()

    def _open_notify_socket(self, owner: tuple[int, int] | None) -> NotifySocket:
        return NotifySocket(
            self._folder, owner, self._mark, partial(self._on_notification, self._number), self._log_refused
        )

    def _log_refused(self, why: str) -> None:
        self._log.warning("notification.refused", why=why)
