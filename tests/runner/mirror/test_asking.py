"""How long the mirror process is waited for, where there is something to go on from without it."""

import asyncio
from pathlib import Path

import pytest

from supervisor.host.mirror import messages
from supervisor.host.mirror.client import MirrorClient, MirrorError, Wanted
from supervisor.host.mirror.settings import MirrorSettings
from supervisor.runner.mirror.asking import MirrorQuestions

QUESTION = messages.FetchRequest(1)
ANSWER = messages.CopyProgress(1, 0, 100), messages.FetchAnswer(1, None, 0, 0, None)


class SlowClient(MirrorClient):
    """Answers after `answers_in_s`; says at once that a copy has begun, if it `copies`."""

    def __init__(self, copies: bool, answers_in_s: float) -> None:
        super().__init__(MirrorSettings("file:///store", "j", Path("/checkpoints"), 1, None), {})
        self._copies, self._answers_in_s = copies, answers_in_s
        self.closed_for: str | None = None

    async def ask(self, question: messages.Question, kind: type[Wanted]) -> Wanted:
        begun, answer = ANSWER
        if self._copies:
            self.progress = begun
        await asyncio.sleep(self._answers_in_s)
        assert isinstance(answer, kind)
        return answer

    def close(self, why: str = "") -> None:
        self.closed_for = why


async def test_a_store_that_says_nothing_is_not_waited_for_longer():
    client = SlowClient(copies=False, answers_in_s=60.0)
    questions = MirrorQuestions(client)

    with pytest.raises(MirrorError, match=r"^the store did not answer within 0\.05 s$"):
        await questions.ask("fetching", QUESTION, messages.FetchAnswer, silence_s=0.05)

    assert client.closed_for == "the store did not answer within 0.05 s"
    assert questions.request is None


@pytest.mark.parametrize(("copies", "silence_s"), [(True, 0.05), (False, None), (False, 60.0)])
async def test_what_has_begun_or_is_in_time_is_waited_for(copies: bool, silence_s: float | None):
    client = SlowClient(copies, answers_in_s=0.2)

    answer = await MirrorQuestions(client).ask("fetching", QUESTION, messages.FetchAnswer, silence_s=silence_s)

    assert answer == ANSWER[1]
    assert client.closed_for is None
