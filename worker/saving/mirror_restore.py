"""A worker without a daemon begins from a mirror: what the store has is fetched when a checkpoint is selected.

The same as under a daemon, but that nothing is uploaded and the run is not taken over: a host that trains the run keeps
it. Fetched are whole checkpoints that count, if they are newer than what is here. Those here that another host has left
behind are set aside. A store that has nothing, or can't be reached while there is nothing here either, is an error: a
worker that was told of a mirror never begins at step 0.
"""

import contextlib
from pathlib import Path

from supervisor.protocol.checkpoints.quarantine import move_to_quarantine
from supervisor.protocol.damage import OlderBecause
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.mirror.fetching import fetch
from supervisor.protocol.mirror.folder_epochs import local_checkpoints
from supervisor.protocol.mirror.keys import store_url
from supervisor.protocol.mirror.other_run import OtherRun
from supervisor.protocol.mirror.remote_run import RemoteRun
from supervisor.protocol.mirror.store import Store, StoreError
from supervisor.protocol.wire.launch import MIRROR

LEFT_BEHIND = "another host has gone on with this run from an earlier checkpoint"


class MirrorUnusable(Exception):
    """There is nothing to begin from; the text says why."""


class MirrorSource:
    """The run at a URL, for the checkpoints of one directory."""

    def __init__(self, url: str, directory: Path) -> None:
        """Looks what the store has. Raises MirrorUnusable, OSError."""
        self._url = url
        self._directory = directory
        self._run: RemoteRun | None = None  # none once it could not be reached
        self._left_behind: tuple[CheckpointName, ...] = ()
        self.attempt = 0
        """The highest attempt in the name of a remote checkpoint: this one needs a higher number."""
        self.messages: list[str] = []
        """What the user should know."""
        try:
            store_url(url)
        except ValueError as error:
            raise MirrorUnusable(f"{MIRROR} {error}") from error
        try:
            self._run = RemoteRun(Store(url))
            result = fetch(self._run, directory, None, only_look=True)
        except StoreError as error:
            self._go_on_without(error, has_local=bool(local_checkpoints(directory)))
            return
        self._left_behind = result.left_behind
        self.attempt = result.attempt
        if result.newest is None and not local_checkpoints(directory):
            raise MirrorUnusable(
                f"cannot begin from {url}: no checkpoint there counts; set {MIRROR} to one run, with the job's name, "
                f"or unset it to begin at step 0"
            )

    def set_aside_left_behind(self) -> None:
        """Moves to quarantine what another host has left behind, before anything here is selected. Raises OSError."""
        for name in self._left_behind:
            with contextlib.suppress(FileNotFoundError):
                move_to_quarantine(self._directory, name, LEFT_BEHIND, OlderBecause.LEFT_BEHIND)
            self.messages.append(f"set {name} aside: {LEFT_BEHIND}")
        self._left_behind = ()

    def fetch_newer(self, than: CheckpointName | None) -> bool:
        """Gets the newest checkpoint into the directory, if it is newer; whether anything there has changed.

        Raises MirrorUnusable, OSError.
        """
        if self._run is None:
            return False
        try:
            result = fetch(self._run, self._directory, than)
        except OtherRun as error:
            remedy = f"unset {MIRROR} to go on from {error.here}, or move what is in {self._directory} away"
            raise MirrorUnusable(f"cannot begin from {self._url}: {error}; {remedy}") from error
        except StoreError as error:
            self._go_on_without(error, has_local=than is not None)
            return False
        self._left_behind = result.left_behind  # by a host that came this moment
        self.set_aside_left_behind()
        refused = [f"refused {checkpoint} in {self._url}: {why}" for checkpoint, why in result.bad]
        self.messages += refused
        if than is None and result.fetched is None and refused:
            remedy = f"unset {MIRROR} to begin at step 0"
            raise MirrorUnusable(
                f"cannot begin from {self._url}: no checkpoint is whole ({'; '.join(refused)}); {remedy}"
            )
        if result.fetched is not None:
            self.messages.append(f"fetched {result.fetched} from {self._url}")
        return result.fetched is not None or bool(result.left_behind)

    def _go_on_without(self, error: StoreError, has_local: bool) -> None:
        if not has_local:
            raise MirrorUnusable(
                f"cannot begin from {self._url}: {error}; there is no checkpoint in {self._directory}, and the store "
                f"may have one; start again when it answers"
            ) from error
        self._run = None
        self.messages.append(f"{error}; going on from the newest checkpoint in {self._directory}")
