"""The folder with the pipes of an attempt that has ended: its last words stay until the ledger has the end."""

from pathlib import Path

from supervisor.host.background_tasks import BackgroundTasks
from supervisor.host.ledger.ledger import Ledger
from supervisor.host.user_folders.folder_removal import remove_soon

WRITTEN_WITHIN_S = 60.0  # a ledger that takes longer does not work; then the next end removes the folder


class LeftFolder:
    """That of a program's last attempt, as long as it is needed. A daemon that begins removes what one has left."""

    __slots__ = ("_folder", "_ledger", "_tasks")

    def __init__(self, ledger: Ledger, tasks: BackgroundTasks) -> None:
        self._ledger = ledger
        self._tasks = tasks
        self._folder: Path | None = None

    def keep(self, folder: Path | None) -> None:
        """An attempt has left it whose end is about to be recorded; None if it had no pipes. Removes the one before."""
        self._remove()
        self._folder = folder

    def on_end_recorded(self) -> None:
        """The end is queued for the ledger. Once it is there, nobody needs the last words."""
        if (folder := self._folder) is not None:
            self._tasks.start(self._remove_when_written(folder))

    async def _remove_when_written(self, folder: Path) -> None:
        is_written = await self._ledger.until_written(WRITTEN_WITHIN_S)
        if is_written and self._folder is folder:
            self._remove()

    def _remove(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            remove_soon(folder)
