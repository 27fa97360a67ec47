"""The chief's daemon and another one, each with its mirror process and folder, and a store in a folder."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import structlog

from supervisor.core.program import effects, events
from supervisor.host.mirror import messages
from supervisor.host.mirror.client import MirrorClient, MirrorError
from supervisor.host.mirror.settings import MirrorSettings
from supervisor.protocol.allocation import Allocation
from supervisor.protocol.checkpoints.account import StatedReason
from supervisor.protocol.damage import OlderBecause
from supervisor.protocol.gang import GangMessage, PartCommitted, PartUploaded, Restore, UploadPart
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.wire.messages import Mirrored, PartsWritten
from supervisor.runner.attempt.gang_parts import GangParts
from supervisor.runner.attempt.gang_place import GangPlace
from supervisor.runner.mirror.exchange import StoreExchange
from supervisor.runner.mirror.hold import RunHold
from supervisor.runner.mirror.part_commits import GIVE_UP_S, PartCommits
from supervisor.runner.records.uploads import UploadDurations
from tests.host.mirror.test_parts import write_parts
from tests.host.mirror.test_run import host
from tests.waiting import wait_until_async

pytestmark = pytest.mark.integration
GENERATION = 1001
PATIENCE_S = 60.0  # for what takes a second; the machine may be busy


class Pair:
    """Two nodes: what one says arrives at the other at once. `cut`: what node 1 says does not arrive."""

    def __init__(self, folder: Path) -> None:
        self.chief, self.other = folder / "chief", folder / "other"
        self.store = folder / "store"
        (self.store / "j").mkdir(parents=True)
        self.gang = GangPlace(Allocation(0, 0, ("a", "b"), 1, GENERATION))
        self.parts, self.others = self.gang.parts, GangParts()
        self.said: list[GangMessage] = []
        self.cut = False
        self.parts.connect(self._to_other)
        self.others.connect(self._to_chief)
        self.committed: list[PartCommitted] = []
        self.clients = [self._client(place) for place in (self.chief, self.other)]
        self.others.serve(self._upload, self.committed.append)
        self.parts.begin_turn(GENERATION, [1])
        self.others.begin_turn(GENERATION, [0])
        self.hold = RunHold(uploads_start=False)
        self.posted: list[events.Event] = []
        log = structlog.get_logger()
        self.exchange = StoreExchange(
            "j", "file://x/j", self.clients[0], self.hold, UploadDurations(), self.posted.append, log
        )
        self.answers: list[Mirrored] = []
        self.commits = PartCommits(self.gang, self.exchange, self.hold, self.answers.append)
        self.before_upload: Callable[[], None] = lambda: None

    def _client(self, folder: Path) -> MirrorClient:
        folder.mkdir()
        return MirrorClient(MirrorSettings(f"file://{self.store}", "j", folder, 5), {})

    def _to_other(self, message: GangMessage, node: int | None) -> None:
        assert node in (None, 1)
        self.said.append(message)
        if isinstance(message, Restore | UploadPart | PartCommitted):
            self.others.on_message(0, message)

    def _to_chief(self, message: GangMessage, node: int | None) -> None:
        assert node == 0
        if isinstance(message, PartUploaded) and not self.cut:
            self.parts.on_message(1, message)

    async def _upload(self, message: UploadPart) -> PartUploaded:
        self.before_upload()
        try:
            question = messages.UploadPartRequest(self.clients[1].next_id(), message.name, message.epoch)
            uploaded = await self.clients[1].ask(question, messages.PartAnswer)
        except MirrorError as error:
            return PartUploaded(message.id, str(error), error.is_gone)
        return PartUploaded(message.id, files=uploaded.files)

    def write(self, step: int, *, is_divided: bool = True) -> CheckpointName:
        name = write_parts(self.chief, self.other, step)
        self.commits.on_written(PartsWritten(1, step, str(name), is_divided), time.monotonic())
        return name

    async def begin(self) -> int:
        """An epoch of the chief's."""
        self.hold.begin_attempt(None, False, 0.0)
        self.hold.begin_training()
        await self.exchange.begin_epoch()
        assert self.hold.epoch is not None
        return self.hold.epoch

    def fetched(self) -> CheckpointName | None:
        return host(f"file://{self.store}/j", self.store.with_name("new")).fetch(None, None).fetched


def run(folder: Path, test: Callable[[Pair], Awaitable[None]]) -> None:
    async def go() -> None:
        pair = Pair(folder)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await test(pair)
        finally:
            for client in pair.clients:
                client.close()

    asyncio.run(go())


def test_checkpoint_exists_once_all_parts_are_there_and_then_the_worker_hears_of_it(tmp_path: Path) -> None:
    async def test(pair: Pair) -> None:
        epoch = await pair.begin()
        name = pair.write(100)
        await pair.commits.commit(str(name), epoch, False)

        assert pair.answers == [Mirrored(1, str(name))]
        assert pair.committed == [PartCommitted(str(name), epoch)]
        assert pair.fetched() == name
        assert pair.hold.newest == name and pair.hold.wanted is None
        assert any(isinstance(event, events.CheckpointMirrored) for event in pair.posted)

    run(tmp_path, test)


def test_part_that_is_gone_gives_the_save_up_and_the_worker_hears_why(tmp_path: Path) -> None:
    async def test(pair: Pair) -> None:
        epoch = await pair.begin()
        name = pair.write(100)
        (pair.other / name.part).rename(pair.other / "away")
        await pair.commits.commit(str(name), epoch, False)

        (answer,) = pair.answers
        assert answer.error is not None and "node 1" in answer.error
        assert pair.hold.wanted is None
        assert pair.fetched() is None

    run(tmp_path, test)


def test_part_that_its_disk_has_changed_gives_the_save_up_at_once(tmp_path: Path) -> None:
    async def test(pair: Pair) -> None:
        epoch = await pair.begin()
        name = pair.write(100)
        path = pair.other / name.part / "worker-1.npz"
        path.write_bytes(path.read_bytes()[::-1])
        await pair.commits.commit(str(name), epoch, False)

        (answer,) = pair.answers
        assert (
            answer.error is not None and "worker-1.npz on its disk is not what the worker has written" in answer.error
        )
        assert pair.hold.wanted is None
        assert pair.fetched() is None

    run(tmp_path, test)


def test_store_that_fails_for_a_node_is_tried_again(tmp_path: Path) -> None:
    async def test(pair: Pair) -> None:
        epoch = await pair.begin()
        name = pair.write(100)
        pair.before_upload = lambda: pair.store.rename(tmp_path / "gone") and None
        with pytest.raises(MirrorError):
            await pair.commits.commit(str(name), epoch, False)
        assert pair.answers == [] and pair.hold.wanted == str(name)
        pair.before_upload = lambda: None
        (tmp_path / "gone").rename(pair.store)
        await pair.commits.commit(str(name), epoch, False)

        assert pair.answers == [Mirrored(1, str(name))]

    run(tmp_path, test)


def test_node_that_is_lost_before_it_answers_ends_the_commit_without_a_checkpoint(tmp_path: Path) -> None:
    async def test(pair: Pair) -> None:
        epoch = await pair.begin()
        name, pair.cut = pair.write(100), True
        commit = asyncio.create_task(pair.commits.commit(str(name), epoch, False))
        manifest = pair.store / "j" / f"e{epoch:04d}" / str(name) / "worker-1.npz"
        await wait_until_async(manifest.exists, "the part is there")
        pair.parts.end_turn("rank 1 was lost")
        await commit

        assert pair.answers[0].error is not None and "rank 1 was lost" in pair.answers[0].error
        assert pair.fetched() is None

    run(tmp_path, test)


@pytest.mark.parametrize("what", ["selects", "has begun"])
def test_nothing_is_committed_once_the_next_attempt_selects(tmp_path: Path, what: str) -> None:
    """What that goes on from would have a newer one beside it."""

    async def test(pair: Pair) -> None:
        epoch = await pair.begin()
        name = pair.write(100)

        def select() -> None:
            pair.hold.is_selecting = what == "selects"
            if what == "has begun":
                pair.hold.begin_attempt(None, False, 0.0)

        pair.before_upload = select
        await pair.commits.commit(str(name), epoch, False)

        assert pair.answers[0].error is not None and "is over" in pair.answers[0].error
        assert pair.fetched() is None

    run(tmp_path, test)


def test_only_what_the_mirror_has_is_announced(tmp_path: Path) -> None:
    async def test(pair: Pair) -> None:
        epoch = await pair.begin()
        name = pair.write(100)
        await pair.commits.commit(str(name), epoch, False)
        (pair.chief / str(name)).mkdir()
        (pair.chief / str(name) / "MANIFEST.json").write_bytes((pair.chief / name.part / "MANIFEST.json").read_bytes())
        alone = CheckpointName(150, 1)
        (pair.chief / str(alone)).mkdir()
        (pair.chief / str(alone) / "MANIFEST.json").write_bytes(b"{}")

        assert "alone" in str(await pair.commits.refuse(1, pair.chief / str(alone)))
        assert "not a checkpoint of stepkeeper's" in str(await pair.commits.refuse(1, Path("/data/other/ckpt")))
        with pytest.raises(RuntimeError, match="was selected"):
            pair.commits.announce(effects.SendGo(1, str(pair.chief / str(alone))))
        assert await pair.commits.refuse(1, pair.chief / str(name)) is None
        reason = StatedReason(OlderBecause.SUSPECT, "why", 200)
        pair.commits.announce(effects.SendGo(1, str(pair.chief / str(name)), stated=reason))
        choice = await pair.others.choice(GENERATION)
        assert (choice.name, choice.epoch, choice.older, choice.newest_step) == (str(name), epoch, "suspect", 200)

    run(tmp_path, test)


def test_choice_of_an_earlier_generation_is_never_taken(tmp_path: Path) -> None:
    async def test(pair: Pair) -> None:
        waits = asyncio.create_task(pair.others.choice(GENERATION))
        pair.others.on_message(0, Restore(GENERATION + 1, "step-0000000100.a1", 1, "x"))
        await asyncio.sleep(0)
        pair.others.begin_turn(GENERATION + 1, [0])
        await asyncio.wait({waits}, timeout=10.0)
        assert waits.cancelled()
        assert (await pair.others.choice(GENERATION + 1)).name == "step-0000000100.a1"

    run(tmp_path, test)


@pytest.mark.parametrize("fails", ["the commit", "the epoch before it"])
def test_store_that_fails_for_long_gives_the_save_up(tmp_path: Path, fails: str) -> None:
    async def test(pair: Pair) -> None:
        epoch = await pair.begin()
        name = pair.write(100)
        pair.before_upload = lambda: pair.store.rename(tmp_path / "gone") and None
        if fails == "the epoch before it":
            pair.before_upload()
        for since, is_over in ((0.0, False), (GIVE_UP_S, True)):
            pair.commits.on_written(PartsWritten(1, 100, str(name), True), time.monotonic() - since)
            with pytest.raises(MirrorError) as failure:
                if fails == "the commit":
                    await pair.commits.commit(str(name), epoch, False)
                else:
                    await pair.exchange.begin_epoch()
            pair.commits.on_failure(failure.value)
            assert [answer.error is not None for answer in pair.answers] == [True] * is_over
            assert (pair.hold.wanted is None) == is_over
            pair.before_upload = lambda: None

    run(tmp_path, test)


def test_commit_that_ends_after_a_start_from_scratch_is_told_to_nobody(tmp_path: Path) -> None:
    """That start asks the store nothing, so it does not wait for the answer."""

    async def test(pair: Pair) -> None:
        epoch = await pair.begin()
        name = pair.write(100)
        ask = pair.clients[0].ask

        async def ask_slowly(question: messages.Question, kind: type[messages.Answer]) -> messages.Answer:
            answer = await ask(question, kind)
            if isinstance(question, messages.CommitPartsRequest):
                pair.hold.begin_attempt(None, gives_up_newer=True, now=1.0)
            return answer

        pair.clients[0].ask = ask_slowly  # type: ignore[method-assign, assignment]
        pair.posted.clear()
        await pair.commits.commit(str(name), epoch, False)

        assert pair.answers[0].error is not None and "is over" in pair.answers[0].error
        assert pair.posted == [] and pair.committed == []

    run(tmp_path, test)


def test_reason_to_begin_from_an_older_one_holds_until_there_is_a_newer_one(tmp_path: Path) -> None:
    """A spare node, which has heard of the one that was given up, may have a rank only then."""

    async def test(pair: Pair) -> None:
        epoch = await pair.begin()
        said = []
        for step, stated in ((100, StatedReason(OlderBecause.ROLLED_BACK, "nan", 150)), (110, None), (150, None)):
            name = pair.write(step)
            await pair.commits.commit(str(name), epoch, False)
            (pair.chief / str(name)).mkdir()
            manifest = (pair.chief / name.part / "MANIFEST.json").read_bytes()
            (pair.chief / str(name) / "MANIFEST.json").write_bytes(manifest)
            await pair.commits.refuse(1, pair.chief / str(name))
            pair.commits.announce(effects.SendGo(1, str(pair.chief / str(name)), stated=stated))
            restore = pair.said[-1]
            assert isinstance(restore, Restore)
            said.append((restore.older, restore.newest_step))

        assert said == [("rolled-back", 150), ("rolled-back", 150), (None, 0)]

    run(tmp_path, test)
