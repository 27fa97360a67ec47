"""The mirror of a gang's job on the nodes other than the chief's, where every node has a folder of its own.

It holds nothing and decides nothing: it fetches what the chief's daemon names, and uploads this node's files when that
asks for it. The run in the store is the chief's.
"""

import errno
from collections.abc import Callable, Mapping

from supervisor.config import ProgramConfig
from supervisor.core.program import events
from supervisor.host.mirror import messages
from supervisor.host.mirror.client import MirrorError
from supervisor.protocol.checkpoints.account import StatedReason
from supervisor.protocol.damage import OlderBecause
from supervisor.protocol.gang import PartCommitted, PartUploaded, UploadPart
from supervisor.protocol.layout import parse_name
from supervisor.runner.attempt.gang_place import GangPlace
from supervisor.runner.mirror.asking import client_of

MAX_ERROR = 500  # characters of what the chief's daemon is told


class NodeMirror:
    """`post` takes the events that follow from what the chief's daemon says."""

    def __init__(
        self,
        config: ProgramConfig,
        environment: Mapping[str, str],
        gang: GangPlace,
        post: Callable[[events.Event], None],
    ) -> None:
        assert config.job is not None
        self._client, self._url = client_of(config, environment)
        self._folder = config.job.checkpoint_dir
        self._gang = gang
        self._post = post
        self._uploads = 0  # that have no answer yet
        gang.parts.serve(self._upload, self._on_committed)

    async def select(self, attempt: int) -> events.CheckpointSelected | events.SelectionFailed:
        """What the chief's daemon announces for this generation, fetched, and proven here."""
        choice = await self._gang.parts.choice(self._gang.allocation.generation)
        if self._uploads:
            self._client.close()  # nobody commits that part any more
        stated = None
        if choice.older is not None:
            stated = StatedReason(OlderBecause(choice.older), choice.older_text, choice.newest_step)
        if choice.name is None:
            return events.CheckpointSelected(attempt, None, None, stated=stated)
        if (name := parse_name(choice.name)) is None:
            raise ValueError(f"the chief's daemon named {choice.name!r:.80}")
        question = messages.FetchNamedRequest(self._client.next_id(), choice.name, choice.epoch, choice.manifest)
        try:
            await self._client.ask(question, messages.DoneAnswer)
        except MirrorError as error:
            text = f"cannot get {name}, which the chief's node selected: {error}; it is tried again"
            return events.SelectionFailed(attempt, text, permanent=False, errno=errno.EHOSTUNREACH)
        self._post(events.CheckpointMirrored(choice.name, self._url, choice.epoch))
        path = str(self._folder / choice.name)
        return events.CheckpointSelected(attempt, path, name.step, highest_step=name.step, stated=stated)

    async def _upload(self, message: UploadPart) -> PartUploaded:
        self._client.lift_limit(not message.is_limited)
        self._uploads += 1
        try:
            question = messages.UploadPartRequest(self._client.next_id(), message.name, message.epoch)
            uploaded = await self._client.ask(question, messages.PartAnswer)
        except MirrorError as error:
            return PartUploaded(message.id, str(error)[:MAX_ERROR], error.is_gone)
        finally:
            self._uploads -= 1
        return PartUploaded(message.id, files=uploaded.files)

    def _on_committed(self, message: PartCommitted) -> None:
        """The mirror has this checkpoint: a later start may not begin from an older one without a reason."""
        self._post(events.CheckpointMirrored(message.name, self._url, message.epoch))

    def close(self) -> None:
        """Ends the process."""
        self._client.close()
