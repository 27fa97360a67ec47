"""Whose a run in the store is: how this host takes it over, and learns that another one has.

**Why two hosts never both go on.** The run belongs to the newest epoch. An epoch is created by one put that fails if
there is one of that number, so each has one holder. A host that is about to take a run over may fail to start at all:
it may be another job of the same name by mistake, which can't even restore what it finds. So the epoch is created only
once an attempt has restored its checkpoint and done a step (`runner/mirror/hold.py`); until then the holder trains
on, undisturbed, and the newcomer can upload nothing, as an upload needs an epoch. From the put on the order is turned
round: the newcomer may upload, and the earlier holder finds the later epoch at its next look, at most WATCH_S later,
and before each commit, and is stopped. In between both train, and nothing that the earlier one commits is told to
anybody as being in the store.

**What the earlier holder did until then.** It may have committed a checkpoint after the newcomer had fetched its own.
So before and after the put the newcomer lists what counts. If there is something that it had not seen, and that is
newer than what it has, the parent of its epoch is that one: nothing uploaded is left behind, the earlier holder is
stopped all the same, and the newcomer's attempt begins again from there. The one gap: the earlier holder commits and
looks between the newcomer's list and its put, and the newcomer is killed before it has listed again.
"""

import platform
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from supervisor.protocol import layout
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.mirror.folder_epochs import (
    begun_epoch,
    given_up_in,
    held_epoch,
    hold_epoch,
    known_epoch,
    record_begin,
    record_store,
)
from supervisor.protocol.mirror.keys import Epoch, RemoteCheckpoint, encode_epoch, epoch_key
from supervisor.protocol.mirror.line import checkpoints_on_line, newest_at_or_before
from supervisor.protocol.mirror.other_run import find_other_run, refuse_empty_list
from supervisor.protocol.mirror.remote_run import RemoteRun, committed
from supervisor.protocol.mirror.store import Store, StoreError


class EpochLost(StoreError):
    """The store lacks the epoch under which this host writes: what is uploaded under it would never be chosen."""

    def __init__(self, number: int) -> None:
        super().__init__(
            f"epoch {number} of this run is gone from the store, as if the prefix was emptied; a new one is begun, and "
            f"the newest checkpoint uploaded again"
        )


class TakenOver(Exception):
    """Another host has begun a later epoch."""

    def __init__(self, epoch: Epoch) -> None:
        super().__init__(f"{epoch.holder or 'another host'} has taken this run over (epoch {epoch.number})")
        self.epoch = epoch


class HeldRun(RemoteRun):
    """A run that this host holds, or may take over. `folder`: the job's checkpoint_dir, which says what it holds.

    Every method raises StoreError.
    """

    def __init__(self, store: Store, folder: Path) -> None:
        super().__init__(store)
        self.folder = folder
        self._proven: set[RemoteCheckpoint] = set()  # whose manifest was seen, not only listed
        self._left_in_memory: dict[RemoteCheckpoint, bool] = {}

    def exists(self, remote: RemoteCheckpoint) -> bool:
        """Whether a checkpoint is there, and not only in a list."""
        if remote not in self._proven and self.store.size(remote.manifest) is not None:
            self._proven.add(remote)
        return remote in self._proven

    def was_left_in_memory(self, remote: RemoteCheckpoint) -> bool:
        """Whether a checkpoint is the state that a dead worker left in memory, in which nobody has looked for NaN."""
        if remote not in self._left_in_memory:
            self._left_in_memory[remote] = self.store.size(remote.key(layout.FROM_MEMORY)) is not None
        return self._left_in_memory[remote]

    def delete(self, remote: RemoteCheckpoint, names: Iterable[str]) -> None:
        """Deletes a checkpoint's files, the manifest first: what is left of one half deleted is no checkpoint."""
        self._proven.discard(remote)
        self._left_in_memory.pop(remote, None)
        ordered = sorted(names, key=lambda name: name != layout.MANIFEST)
        self.store.delete(remote.key(name) for name in ordered)

    def take_over(
        self, start: CheckpointName | None, known: int, seen: CheckpointName | None, has_no_past: bool = False
    ) -> tuple[int, CheckpointName | None]:
        """Takes the run over without leaving anything behind that was uploaded meanwhile.

        `start`: what the attempt goes on from, or has committed since. `seen`: the newest that counted when it was
        chosen; what lies between the two was passed over on purpose. `known`: as for `begin_epoch`. `has_no_past`: the
        attempt went on from nothing in the store, and `start` is what it has committed. Gives the number of the new
        epoch, and what is newer than both: then the epoch goes on from that, and the attempt is to begin again (None:
        there is nothing). Raises OtherRun, and what `begin_epoch` raises.
        """
        if (other := find_other_run(self, self.folder, self._line_that_is_whole)) is not None:
            raise other  # the store could not be reached when the attempt began
        record_store(self.folder, self.store.url)
        is_given_up = given_up_in(self.folder)  # before an epoch of this host leaves it behind
        newer = self._newer_than((start, seen), self.epochs(), is_given_up)
        goes_on_from = None if has_no_past else start
        number = (
            self.begin_epoch(goes_on_from, known) if newer is None else self._create_epoch(newer, newer.name, known)
        )
        earlier = {epoch.number: epoch for epoch in self._epochs.values() if epoch.number < number}
        known_names = (start, seen, None if newer is None else newer.name)
        if (late := self._newer_than(known_names, earlier, is_given_up)) is not None:
            newer, number = late, self._create_epoch(late, late.name, number)
        return number, None if newer is None else newer.name

    def _line_that_is_whole(self) -> tuple[RemoteCheckpoint, ...]:
        """What counts. Raises StoreError if the store lists nothing of a run that has, or had, something."""
        epochs = self.epochs()
        line = checkpoints_on_line(epochs, committed(self.files()))
        if epochs and not line:
            refuse_empty_list(self, epochs[max(epochs)])
        return line

    def _newer_than(
        self,
        names: Iterable[CheckpointName | None],
        epochs: Mapping[int, Epoch],
        is_given_up: Callable[[CheckpointName], bool],
    ) -> RemoteCheckpoint | None:
        """The newest checkpoint on the line of these epochs, if it is newer than all the names; none of those given
        up."""
        limit = max((name for name in names if name is not None), default=None)
        line = checkpoints_on_line(epochs, committed(self.files()))
        newer = (checkpoint for checkpoint in line if limit is None or checkpoint.name > limit)
        return next((remote for remote in newer if not is_given_up(remote.name) and self.exists(remote)), None)

    def begin_epoch(self, start: CheckpointName | None, known: int) -> int:
        """Begins an epoch that goes on from `start`, whatever there is beyond it, and without what this host has given
        up: it may have saved a later step since. Gives its number.

        `known`: the highest known epoch. One that this folder knows of is known too: a daemon that goes on with a
        running worker looks at nothing else.

        Raises TakenOver if there is a later one, OSError if the folder can't be written.
        """
        record_store(self.folder, self.store.url)
        is_given_up = given_up_in(self.folder)
        line = checkpoints_on_line(self.epochs(), committed(self.files()))
        counting = [checkpoint for checkpoint in line if not is_given_up(checkpoint.name)]
        return self._create_epoch(newest_at_or_before(counting, start), start, known)

    def _create_epoch(self, parent: RemoteCheckpoint | None, start: CheckpointName | None, known: int) -> int:
        """What is going to be created is noted in the folder first, so that the next process knows it again if this
        one is killed, or its answer lost."""
        epochs, before = self.epochs(), begun_epoch(self.folder)
        known = max(known, known_epoch(self.folder, epochs))
        self._refuse_after(known)
        # numbers never go back, also where the store was emptied: what is in the folder counts by them
        number, holder = max(known, *epochs, 0) + 1, platform.node()
        begins = number, parent, start, holder
        if before is not None and (before.number, before.parent, before.start, before.holder) == begins:
            epoch = before  # the request of that time may still arrive
        else:
            epoch = Epoch(number, parent, holder, time.time(), secrets.token_hex(8), start)
            record_begin(self.folder, epoch)
        if not self.store.create(epoch_key(number), encode_epoch(epoch)):
            self._refuse_other(epoch, before)
        hold_epoch(self.folder, number)
        return number

    def keep_held(self, epoch: int) -> None:
        """Has the folder say which epoch this host holds: somebody may have deleted it with all that it said.

        Otherwise the next daemon would take its own epoch for another host's. Raises OSError.
        """
        if held_epoch(self.folder, self._epochs) != epoch:
            hold_epoch(self.folder, epoch, leaves_behind=False)

    def _refuse_other(self, epoch: Epoch, before: Epoch | None) -> None:
        """Raises TakenOver unless the epoch of this number is `epoch`. The object says so: a list may leave it out.

        `before`: what this host was about to begin earlier. If it is that, StoreError: the next try goes on from it.
        """
        stored = self.read_epoch(epoch.number)
        if stored is None:
            raise StoreError(f"cannot begin epoch {epoch.number}: the store has and has not an object of that name")
        if stored == before != epoch:
            hold_epoch(self.folder, stored.number, leaves_behind=False)
            raise StoreError(f"cannot begin epoch {epoch.number}: an earlier try of this host came through late")
        if stored != epoch:
            raise TakenOver(stored)

    def _require(self, epoch: int) -> None:
        """Raises TakenOver if there is a later epoch, EpochLost if this one is gone, which no list proves."""
        self.epochs()
        self._refuse_after(epoch)
        if self.store.size(epoch_key(epoch)) is None:
            self._epochs.clear()
            raise EpochLost(epoch)

    def _refuse_after(self, epoch: int) -> None:
        latest = max(self._epochs, default=0)
        if latest > epoch:
            raise TakenOver(self._epochs[latest])
