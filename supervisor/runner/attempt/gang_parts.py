"""What the daemons of a gang tell each other of checkpoints, where every node has a folder of its own.

No node has a whole checkpoint then: each wrote its files (`….part`), and uploads them when the chief's daemon asks for
it. The chief's daemon commits in the mirror once all have answered. At a start it alone selects, and says what the
others fetch. Nothing here decides; `runner/mirror` does.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from supervisor.host.background_tasks import BackgroundTasks
from supervisor.host.mirror.client import MirrorError
from supervisor.protocol.checkpoints.manifest import StoredFile
from supervisor.protocol.gang import GangMessage, PartCommitted, PartMessage, PartUploaded, Restore, UploadPart

log = structlog.get_logger()


class GangParts:
    """One daemon's end. The gang's agent says who trains (`begin_turn`), and brings what other daemons say."""

    def __init__(self) -> None:
        self._send: Callable[[GangMessage, int | None], None] = lambda message, to: None
        self._upload: Callable[[UploadPart], Awaitable[PartUploaded]] | None = None
        self._on_committed: Callable[[PartCommitted], None] = lambda message: None
        self._others: Sequence[int] = ()  # nodes that train in this turn, less this one
        self._choices: dict[int, asyncio.Future[Restore]] = {}  # by generation; the present one, and none before
        self._answers: dict[int, asyncio.Future[PartUploaded]] = {}
        self._serving = BackgroundTasks(log)
        self._last_id = 0

    def connect(self, send: Callable[[GangMessage, int | None], None]) -> None:
        """`send`: says something to one node, or to all (None)."""
        self._send = send

    def serve(
        self, upload: Callable[[UploadPart], Awaitable[PartUploaded]], on_committed: Callable[[PartCommitted], None]
    ) -> None:
        """Who does what the chief's daemon asks for, and hears what it has committed."""
        self._upload, self._on_committed = upload, on_committed

    # --- turns ---

    def begin_turn(self, generation: int, others: Sequence[int]) -> None:
        """The nodes `others` train together with this one."""
        self.end_turn("its turn is over")
        self._others = others
        for earlier in [number for number in self._choices if number < generation]:
            self._choices.pop(earlier).cancel()

    def end_turn(self, text: str) -> None:
        """Nobody answers what was asked in this turn."""
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(MirrorError(f"cannot upload the parts of all nodes: {text}", is_gone=True))

    # --- the chief ---

    def announce(self, choice: Restore) -> None:
        """Says what all begin from."""
        self._send(choice, None)

    async def upload(self, name: str, epoch: int, is_limited: bool) -> list[StoredFile]:
        """Has the other nodes upload their files, and says which those are.

        Raises MirrorError: `is_gone` if one of them can't do it any more.
        """
        nodes, asked = list(self._others), list[asyncio.Future[PartUploaded]]()
        first = self._last_id + 1
        try:
            for node in nodes:
                self._last_id += 1
                answer: asyncio.Future[PartUploaded] = asyncio.get_running_loop().create_future()
                self._answers[self._last_id] = answer
                asked.append(answer)
                self._send(UploadPart(self._last_id, name, epoch, is_limited), node)
            answers = await asyncio.gather(*asked, return_exceptions=True)
        finally:
            for number in range(first, self._last_id + 1):
                self._answers.pop(number, None)
        errors, files = [], list[StoredFile]()
        for node, said in zip(nodes, answers, strict=True):
            if isinstance(said, MirrorError):
                errors.append(said)
            elif isinstance(said, BaseException):
                raise said
            elif said.error is not None:
                errors.append(MirrorError(f"node {node}: {said.error}", is_gone=said.is_gone))
            else:
                files += said.files
        if errors:
            raise max(errors, key=lambda error: error.is_gone)
        return files

    def say_committed(self, name: str, epoch: int) -> None:
        """The mirror has it now."""
        self._send(PartCommitted(name, epoch), None)

    # --- the others ---

    async def choice(self, generation: int) -> Restore:
        """What the chief's daemon has announced for this generation. Never returns if that is over before."""
        return await self._choice_of(generation)

    def _choice_of(self, generation: int) -> asyncio.Future[Restore]:
        if generation not in self._choices:
            self._choices[generation] = asyncio.get_running_loop().create_future()
        return self._choices[generation]

    # --- what comes in ---

    def on_message(self, node: int, message: PartMessage) -> None:
        """Another daemon said this."""
        match message:
            case Restore():
                future = self._choice_of(message.generation)
                if not future.done():
                    future.set_result(message)
            case UploadPart():
                self._serving.start(self._serve(node, message))
            case PartUploaded():
                answer = self._answers.get(message.id)
                if answer is not None and not answer.done():
                    answer.set_result(message)
            case PartCommitted():
                self._on_committed(message)

    async def _serve(self, node: int, message: UploadPart) -> None:
        """Answers in any case: the chief's daemon waits for it."""
        if self._upload is None:
            text = "checkpoint_dir_shared is not false in this node's configuration"
            answer = PartUploaded(message.id, text, is_gone=True)
        else:
            try:
                answer = await self._upload(message)
            except Exception as error:
                log.exception("internal.failed", on="the upload of a part")
                answer = PartUploaded(message.id, f"an internal error, which its log has: {error!r:.200}", is_gone=True)
        self._send(answer, node)
