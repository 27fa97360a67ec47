"""How the chief's daemon commits checkpoints of a gang whose nodes have folders of their own.

Each worker has written its files on its node, and the chief's worker waits. All nodes upload what is theirs; then the
chief's mirror process creates the manifest in the store, which is the commit. Until then nothing of it counts: what an
earlier end leaves in the store is deleted after a day, and on the disks at the next start.

At a start this node's daemon selects for all, but only what the store has, as the others have to get it from there.
"""

import errno
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePath

from supervisor.core.program import effects, events
from supervisor.host.mirror.client import MirrorError
from supervisor.protocol.checkpoints.account import StatedReason
from supervisor.protocol.gang import Restore
from supervisor.protocol.layout import parse_name
from supervisor.protocol.wire import messages
from supervisor.runner.attempt.gang_parts import GangParts
from supervisor.runner.attempt.gang_place import GangPlace
from supervisor.runner.mirror.exchange import StoreExchange
from supervisor.runner.mirror.hold import RunHold

MAX_ERROR = 500  # characters of what the worker is told
GIVE_UP_S = 60.0  # of a store that fails: a newer step is saved instead, and training does not wait for this one


class PartCommits:
    """`answer` sends the chief's worker how a commit has ended."""

    def __init__(
        self, gang: GangPlace, exchange: StoreExchange, hold: RunHold, answer: Callable[[messages.Mirrored], None]
    ) -> None:
        self._gang = gang
        self._exchange = exchange
        self._hold = hold
        self._answer = answer
        self._written: messages.PartsWritten | None = None
        self._give_up_at = 0.0
        self._located: tuple[str, int, str] | None = None  # name, epoch, manifest of what was selected
        self._stated: StatedReason | None = None
        """The last reason to begin from an older one."""

    def on_written(self, message: messages.PartsWritten, now: float) -> bool:
        """The files of a checkpoint are on the disks: it is to be committed. False if that is known."""
        name = parse_name(message.checkpoint)
        self._written, self._give_up_at = message, now + GIVE_UP_S
        return name is not None and self._hold.add_commit(name, now)

    async def commit(self, name: str, epoch: int, is_limited: bool) -> None:
        """Commits a checkpoint, or gives it up if a part is gone. Raises MirrorError if the store failed, RunFenced."""
        written = self._written
        if written is None or written.checkpoint != name:
            self._hold.drop_wanted(name)
            return
        others: GangParts | None = self._gang.parts if written.is_divided else None
        try:
            await self._exchange.upload_parts(name, epoch, others, is_limited)
        except MirrorError as failure:
            if not failure.is_gone:
                raise
            self._give_up(written, failure)
            return
        self._gang.parts.say_committed(name, epoch)
        self._answer(messages.Mirrored(written.attempt, name))

    def on_failure(self, failure: MirrorError) -> None:
        """The store failed, whatever was asked: what has waited for it for long is given up."""
        written = self._written
        is_waiting = written is not None and self._hold.wanted == written.checkpoint
        if written is not None and is_waiting and time.monotonic() >= self._give_up_at:
            self._give_up(written, failure)

    def _give_up(self, written: messages.PartsWritten, failure: MirrorError) -> None:
        self._hold.drop_wanted(written.checkpoint)
        self._answer(messages.Mirrored(written.attempt, written.checkpoint, str(failure)[:MAX_ERROR]))

    async def refuse(self, attempt: int, path: PurePath | None) -> events.SelectionFailed | None:
        """Why the gang can't begin from the selected checkpoint; None if it can."""
        self._located = None
        if path is None:
            return None
        try:
            why = await self._why_not(path.name)
        except MirrorError as error:
            text = f"{error}; the other nodes get the checkpoint from the mirror; it is tried again"
            return events.SelectionFailed(attempt, text, permanent=False, errno=errno.EHOSTUNREACH)
        if why is None:
            return None
        remedy = "train on one node until it is in the mirror, or move it away to begin from what is there"
        return events.SelectionFailed(attempt, f"cannot train on several nodes: {why}; {remedy}", permanent=True)

    async def _why_not(self, name: str) -> str | None:
        if parse_name(name) is None:
            return f"{name} is not a checkpoint of stepkeeper's, and nothing proves that all nodes have the same one"
        there = await self._exchange.locate(name)
        if there.epoch == 0:
            return f"{name} is on this node's disk alone, and the others can get from the mirror only what is there"
        self._located = name, there.epoch, there.manifest
        return None

    def announce(self, effect: effects.SendGo) -> None:
        """Says to the other nodes what all begin from."""
        name = PurePath(effect.restore).name if effect.restore is not None else None
        older = self._reason_of(0 if name is None or (parsed := parse_name(name)) is None else parsed.step, effect)
        reason = (None, "", 0) if older is None else (str(older.because), older.text[:MAX_ERROR], older.newest_step)
        chosen = ("", 0, "") if self._located is None else self._located
        if name is not None and name != chosen[0]:
            raise RuntimeError(f"{name} was selected, and {chosen[0] or 'nothing'} was found in the mirror")
        self._gang.parts.announce(Restore(self._gang.allocation.generation, name, *chosen[1:], *reason))

    def _reason_of(self, step: int, effect: effects.SendGo) -> StatedReason | None:
        """Why all begin from `step`. What was said before is said again until there is a newer checkpoint than the one
        that was given up: a node may have had no rank when it was."""
        before = self._stated
        if effect.stated is not None:
            newest_step = max(effect.stated.newest_step, 0 if before is None else before.newest_step)
            self._stated = replace(effect.stated, newest_step=newest_step)
        return self._stated if self._stated is not None and step < self._stated.newest_step else None
