"""One host's hold of a run in an object store: what is there, as far as known, and what is still to be put there.

**When the run is taken.** Fetching takes nothing from anybody. A host takes the run over, by an epoch of its own, once
an attempt has done its first step: one that can't restore what it found, or fails before it trains, leaves the host
that has the run alone. A host that has the run already, and an operator who begins from scratch, need not wait for
that. If the earlier host has uploaded a checkpoint since this one fetched, the attempt begins again from that
(CheckpointOutdated). `host/mirror/epochs.py` says why two hosts never both go on.
"""

from pathlib import PurePath

from supervisor.host.mirror.messages import EpochAnswer, FetchAnswer
from supervisor.protocol.layout import CheckpointName, parse_name

MAX_LACKING = 1000  # of checkpoints that are remembered because the store lacks them: only the oldest is asked for


class RunHold:
    """It asks nobody: whoever asks the store tells it the answers. Times are monotonic seconds.

    `uploads_start`: what an attempt begins from is uploaded if the store has it not; else it has it.
    """

    def __init__(self, uploads_start: bool = True) -> None:
        self._uploads_start = uploads_start
        self.epoch: int | None = None
        """The one under which this host writes; None while it doesn't."""
        self.known = 0
        """The highest epoch that the store was seen to have."""
        self.start: str | None = None
        """The checkpoint that the epoch goes on from, or is to."""
        self.is_anew = False
        """The start gives up all that the store has beyond it."""
        self.may_begin = False
        """An attempt has trained, or takes nothing from anybody."""
        self.seen: CheckpointName | None = None
        """The newest that counted when the store was last asked, whether it may be used or not."""
        self.wanted: str | None = None
        """The newest local checkpoint, while it is not in the store."""
        self.attempt = 0
        """The highest attempt in the name of a remote checkpoint."""
        self.starts = 0
        """How many attempts have begun; what an earlier one asked says nothing about a later one."""
        self.is_selecting = False
        """A checkpoint is being selected: it is not known yet what this host goes on from."""
        self.is_resuming = False
        """It is not known yet whether an earlier daemon left something to upload."""
        self.is_finishing = False
        """What an earlier daemon left is being uploaded."""
        self._has_start = False  # not yet for a worker that an earlier daemon started
        self._is_held = False  # the newest epoch was this host's when the store was last asked
        self._remote: tuple[CheckpointName, ...] = ()  # that count, newest first, as far as known
        self._lacking: list[tuple[CheckpointName, float]] = []  # those that the store lacks, oldest first, since when
        self._has_resumed = False

    # --- what it comes to ---------------------------------------------------------------------------------------------

    @property
    def newest(self) -> CheckpointName | None:
        """The newest checkpoint in the store; None if there is none or it is not known."""
        return self._remote[0] if self._remote else None

    @property
    def names(self) -> tuple[str, ...]:
        """The checkpoints in the store that count, newest first, as far as known."""
        return tuple(map(str, self._remote))

    @property
    def waits(self) -> bool:
        """Whether a checkpoint that is on the disk is not in the store yet, or may not be, and is going to be uploaded.

        What an attempt begins from is not, until the run is this host's.
        """
        return self.is_resuming or (self.wanted is not None and (self.epoch is not None or self.may_begin))

    @property
    def has_work(self) -> bool:
        """Whether the store is to be asked something now."""
        if self.is_resuming:
            return True
        if self.epoch is None:
            return self._has_start and self.may_begin
        return self.wanted is not None

    @property
    def is_begun(self) -> bool:
        """Whether it is known what this host goes on from."""
        return self._has_start

    @property
    def newest_here(self) -> CheckpointName | None:
        """The newest checkpoint of ours on this disk that it knows of: what it goes on from, or wants uploaded."""
        return max(filter(None, (name_of(self.start), name_of(self.wanted))), default=None)

    def lacking_since(self) -> float | None:
        """Since when the oldest checkpoint is on the disk that is newer than all in the store; None: there is none."""
        return self._lacking[0][1] if self.waits and self._lacking else None

    def may_have_newer(self, local: CheckpointName | None) -> bool:
        """Whether the store may have a newer checkpoint than the newest whole one here."""
        is_committing = self.wanted is not None and not self._uploads_start  # perhaps the store has it by now
        return self.epoch is None or local is None or is_committing or (self.newest is not None and self.newest > local)

    # --- an attempt begins, and trains --------------------------------------------------------------------------------

    def begin_attempt(self, name: CheckpointName | None, gives_up_newer: bool, now: float) -> None:
        """An attempt begins from this checkpoint: what the store has beyond it is on another line.

        `gives_up_newer`: an operator has given up whatever there is beyond it.
        """
        start = None if name is None else str(name)
        # what was asked for last left out what was not to be used, and an upload may end after this
        on_its_way = None if self.epoch is None else name_of(self.wanted)
        beyond = max(filter(None, (self.newest, self.seen, on_its_way)), default=None)
        goes_on = not gives_up_newer and (beyond is None or (name is not None and name >= beyond))
        self.is_selecting = False
        self.starts += 1
        if self.epoch is None or not goes_on:
            self.seen = beyond
            self.may_begin = gives_up_newer or self.epoch is not None or self._is_held
            self.epoch, self.start, self._has_start, self.is_anew = None, start, True, gives_up_newer
        self.is_resuming = self.is_finishing = False
        self.wanted = start if self._uploads_start and start not in self.names else None
        self._lacking = [(name, now)] if self.wanted is not None and name is not None else []

    def pass_over(self, name: CheckpointName | None) -> None:
        """What this host begins from, or has, passes over this one for a reason: no other host uploaded it since."""
        self.seen = max(filter(None, (self.seen, name)), default=None)

    def begin_training(self) -> bool:
        """A step is done: the run may be taken. False if that changes nothing."""
        if not self._has_start or self.may_begin:
            return False
        self.may_begin = True
        return True

    def add_commit(self, name: CheckpointName, committed_at: float) -> bool:
        """A checkpoint is on the disk. False if that is known: a worker that was adopted repeats its last commit."""
        if name in self._remote and not self.is_resuming:
            return False
        if not (self._has_start or self.is_resuming):
            self.start, self._has_start = str(name), True
        self.is_finishing, self.may_begin = False, True
        self.wanted = str(name)
        if len(self._lacking) < MAX_LACKING:
            self._lacking.append((name, committed_at))
        return True

    # --- what an earlier daemon left ----------------------------------------------------------------------------------

    def resume(self) -> bool:
        """It is to be found out what an earlier daemon left. False if that is known, or no longer of interest."""
        if self._has_resumed or self._has_start:
            return False
        self._has_resumed = self.is_resuming = True
        return True

    def go_on_without(self, passed_over: CheckpointName) -> None:
        """An adopted worker began from an older checkpoint than this: what is newer here than what it saves is no line
        of its own, so nothing of that is finished."""
        self._has_resumed, self.is_resuming = True, False
        if self.is_finishing:
            self.give_up_finishing()
        self.pass_over(passed_over)

    def settle_resume(self, local: CheckpointName | None, there: FetchAnswer | None, now: float) -> bool:
        """The newest checkpoint here is to be uploaded, unless the store has it, or another host has left it behind.

        `there`: what the store says, if it was asked. Returns whether there is something to finish.
        """
        newest = None if there is None or there.newest is None else parse_name(there.newest)
        may_finish = False
        if local is not None and there is not None:
            may_finish = str(local) not in there.left_behind and (there.is_held or there.epoch == 0)
            local = max(local, name_of(self.wanted) or local)  # what an adopted worker committed meanwhile is wanted
        self.is_resuming = False
        self._remote = () if newest is None else (newest,)
        if local is None or not may_finish or (newest is not None and newest >= local):
            self.wanted, self._lacking = None, []
            return False
        self.start, self._has_start = str(local), True
        self.is_finishing = self.may_begin = True
        self.wanted, self._lacking = str(local), self._lacking or [(local, now)]
        return True

    def give_up_finishing(self) -> None:
        """Another host has begun an epoch since: the next start decides what follows."""
        self.is_finishing = self._has_start = False
        self.wanted, self._lacking, self.start = None, [], None

    # --- what the store says ------------------------------------------------------------------------------------------

    def learn(self, there: FetchAnswer) -> None:
        """What it has."""
        newest = None if there.newest is None else parse_name(there.newest)
        self._remote = () if newest is None else (newest, *(name for name in self._remote if name < newest))
        self.known, self.attempt = max(self.known, there.epoch), max(self.attempt, there.attempt)
        self.seen, self._is_held = name_of(there.seen), there.is_held

    def begin_epoch(self, begun: EpochAnswer, here: CheckpointName | None, starts: int) -> CheckpointName | None:
        """An epoch of this host has begun, as was asked when it had had so many starts, with `here` as its newest.

        Returns a newer checkpoint that another host has uploaded before that: then the attempt has to begin again.
        """
        self.known = max(self.known, begun.epoch)
        if starts != self.starts:
            return None  # another attempt has begun meanwhile
        self.epoch, self._is_held = begun.epoch, True
        newer = name_of(begun.newer)
        if newer is not None:
            self._remote, self.wanted, self._lacking = (newer,), None, []
        else:
            self._remote = tuple(name for name in self._remote if here is not None and name <= here)
        self.seen = self.newest
        return newer

    def add_upload(self, uploaded: str, remote: tuple[str, ...]) -> None:
        """This checkpoint is in the store, which has `remote` now."""
        self._remote = tuple(name for text in remote if (name := parse_name(text)) is not None)
        self.seen = max(filter(None, (self.seen, self.newest)), default=None)
        self.drop_wanted(uploaded)
        self._lacking = [entry for entry in self._lacking if self.newest is None or entry[0] > self.newest]

    def drop_wanted(self, name: str) -> None:
        """This one is not to be uploaded any more; a newer one may be."""
        self.wanted = None if self.wanted == name else self.wanted

    def forget_epoch(self) -> None:
        """The store does not know this host's epoch, as it was emptied; or has a later one, by which others wrote."""
        self.epoch, self._remote = None, ()

    def lose(self) -> None:
        """Another host goes on with the run."""
        self.epoch, self.wanted = None, None
        self._has_start = self.may_begin = self._is_held = self.is_resuming = self.is_finishing = False
        self._lacking = []
        self.known = 0  # the next start looks anew, and may take the run back


def name_of(path: str | None) -> CheckpointName | None:
    """The name of a checkpoint of ours; None for those of other programs."""
    return None if path is None else parse_name(PurePath(path).name)
