"""Asks the mirror process, and says what is being asked: `status` shows it, as a store may take long to answer."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

from supervisor.config import ProgramConfig
from supervisor.host.mirror import messages
from supervisor.host.mirror.client import MirrorClient, MirrorError, Wanted
from supervisor.host.mirror.settings import MirrorSettings
from supervisor.host.processes import credentials
from supervisor.protocol.mirror.keys import run_of, url_of_run


@dataclass(frozen=True, slots=True)
class MirrorRequest:
    """What is being asked of the store: `what`, in words, and the checkpoint that it is about, if there is one.

    `for_s`: for how long. `copied_bytes`, `size_bytes`: of a checkpoint on its way, to the store or from it.
    """

    what: str
    checkpoint: str | None
    for_s: float
    copied_bytes: int | None = None
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class MirrorStatus:
    """How far the copy in the store is. `epoch`: under which this host writes; `newest_step`: of what is there.

    `waits`: the checkpoint that is not there yet; `error`: why not, or what else is wrong. `behind_s`: how long the
    oldest checkpoint has been on the disk that is newer than all in the store; 0 if there is none. `request`: what is
    being asked of the store. `silent_s`: for how long the store has not answered; 0 if it answers.
    """

    url: str
    epoch: int | None
    newest_step: int | None
    waits: str | None
    error: str | None
    behind_s: float
    request: MirrorRequest | None = None
    silent_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _OpenQuestion:
    what: str
    checkpoint: str | None
    since: float


class MirrorQuestions:
    """The questions of one job to its mirror, but for the look at the epochs, which goes on beside them."""

    def __init__(self, client: MirrorClient) -> None:
        self._client = client
        self._asked: _OpenQuestion | None = None

    async def ask(
        self,
        what: str,
        question: messages.Question,
        kind: type[Wanted],
        checkpoint: str | None = None,
        silence_s: float | None = None,
    ) -> Wanted:
        """The answer to a question that `what` describes. Raises MirrorError, RunFenced.

        `silence_s`: MirrorError if neither an answer nor the beginning of a copy comes in so long; None: it is waited
        for as long as the process tries.
        """
        asked = self._asked = _OpenQuestion(what, checkpoint, time.monotonic())
        self._client.progress = None
        answer = asyncio.ensure_future(self._client.ask(question, kind))
        try:
            await asyncio.wait({answer}, timeout=silence_s)
            if not answer.done() and self._client.progress is None:
                answer.cancel()
                silence = f"the store did not answer within {silence_s:g} s"
                self._client.close(silence)  # it is still at it, and would keep the next question waiting
                raise MirrorError(silence)
            return await answer
        finally:
            answer.cancel()
            if self._asked is asked:
                self._asked = None

    @property
    def request(self) -> MirrorRequest | None:
        """What is being asked; None if nothing is."""
        if (asked := self._asked) is None:
            return None
        progress = self._client.progress
        copied, size = (None, None) if progress is None else (progress.copied_bytes, progress.size_bytes)
        return MirrorRequest(asked.what, asked.checkpoint, time.monotonic() - asked.since, copied, size)


async def find_other_run(config: ProgramConfig, environment: Mapping[str, str]) -> str | None:
    """Why the mirror of a job's section may be of another training than what its checkpoint_dir has; None if not.

    Before the section is used: nothing is changed. `environment`: the daemon's. Raises MirrorError.
    """
    if config.user is not None:
        await credentials.look_up(config.user)
    client, url = client_of(config, environment)
    try:
        look = await client.ask(messages.FetchRequest(client.next_id(), only_look=True), messages.FetchAnswer)
    finally:
        client.close()
    if (other := look.other_run) is None:
        return None
    return (
        f"the newest checkpoint in its mirror {url} is of step {other.there}, and nothing says that it is of the same "
        f"training as step {other.here} here; give it a mirror of its own"
    )


def client_of(config: ProgramConfig, environment: Mapping[str, str]) -> tuple[MirrorClient, str]:
    """What asks the mirror process of a job, and the URL of its run. `environment`: the daemon's."""
    assert config.job is not None and config.job.mirror is not None
    run = run_of(config.name)
    settings = MirrorSettings(
        url=config.job.mirror,
        run=run,
        folder=config.job.checkpoint_dir,
        keep=config.job.mirror_keep,
        bytes_per_s=config.job.mirror_rate_limit,
    )
    client = MirrorClient(settings, environment, config.environment, config.user)
    return client, url_of_run(config.job.mirror, run)
