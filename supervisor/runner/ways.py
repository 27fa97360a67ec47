"""How a plain program is reached besides by signals: its standard input, and the socket where it says it is ready."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from supervisor.config import ProgramConfig
from supervisor.host import stdin
from supervisor.host.channel import make_folder
from supervisor.host.notify import NotifySocket, Said
from supervisor.host.spawning import SpawnError
from supervisor.host.stdin import Stdin
from supervisor.runner.launching import owner_of


class Ways:
    """Those of one attempt, in its `folder`. `mark`: what its processes carry; `on_said` gets its notifications."""

    def __init__(
        self,
        folder: Path,
        config: ProgramConfig,
        mark: str,
        on_said: Callable[[Said], None],
        log: FilteringBoundLogger,
    ) -> None:
        self.stdin = Stdin(folder)
        self._folder = folder
        self._config = config
        self._mark = mark
        self._on_said = on_said
        self._notify: NotifySocket | None = None
        self._log = log

    @property
    def notify_path(self) -> Path | None:
        """The socket's, for the program's environment; None where it has none."""
        return self._notify.path if self._notify is not None else None

    @property
    def was_ready(self) -> bool:
        """Whether the program has said that it is ready, to this daemon or an earlier one."""
        return self._notify is not None and self._notify.was_ready

    def open(self) -> int:
        """Makes them; gives what the program is to read from. Raises SpawnError or OSError with nothing left behind.

        Where no file can be made, a program that is only written to starts all the same.
        """
        owner = owner_of(self._config)
        try:
            make_folder(self._folder, 0o711)
            reading = stdin.create(self._folder, owner)
        except OSError as error:
            self._log.warning("stdin.out_of_reach", folder=str(self._folder), error=error.strerror)
            reading = stdin.without_path()
        if self._config.notify:
            try:
                self._notify = self._listen(owner)
            except OSError as error:
                os.close(reading)
                self.end()
                raise SpawnError(
                    f"cannot listen for its readiness in {self._folder}: {error.strerror or error}; make runtime_dir "
                    f"writable, or point it elsewhere",
                    permanent=False,
                ) from error
        return reading

    def take_over(self, pid: int) -> None:
        """Goes on where an earlier daemon left them. One that can't be heard any more is supervised all the same."""
        if self._config.notify:
            try:
                self._notify = self._listen(owner_of(self._config))
            except OSError as error:
                self._log.warning("notify.out_of_reach", folder=str(self._folder), error=error.strerror or str(error))
        self.started(pid)

    def started(self, pid: int) -> None:
        """The program's process."""
        if self._notify is not None:
            self._notify.pid = pid

    def end(self) -> None:
        """Hears what the program said last, and removes them."""
        if self._notify is not None:
            self._notify.drain()
        self.let_go()
        shutil.rmtree(self._folder, ignore_errors=True)

    def let_go(self) -> None:
        """Leaves them, as they are, to the next daemon."""
        if self._notify is not None:
            self._notify.close()

    def _listen(self, owner: tuple[int, int] | None) -> NotifySocket:
        return NotifySocket(self._folder, owner, self._mark, self._on_said, self._disbelieved)

    def _disbelieved(self, why: str) -> None:
        self._log.warning("notification.refused", why=why)
