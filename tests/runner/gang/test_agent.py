"""What a daemon of a gang makes of its own worker's end."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from supervisor.core.failures.restart import Cause
from supervisor.core.notices.notice import Certainty, Notice, NoticeKind
from supervisor.core.program.events import GangBegins, GangBroken
from supervisor.core.program.facts import Policy, ProgramFacts, State
from supervisor.host.gang.link import GangLink
from supervisor.protocol import allocation, gang
from supervisor.protocol.allocation import Allocation, StepExit
from supervisor.protocol.gang import (
    Alive,
    Broken,
    GangMessage,
    Join,
    Leave,
    Over,
    Refused,
    SeenDivergence,
    WithoutWorker,
)
from supervisor.runner.attempt.gang_place import GangPlace
from supervisor.runner.gang.agent import GangAgent, GangSettings, cluster_of_one
from supervisor.runner.gang.node_departure import NodeDeparture
from supervisor.runner.program.changes import ChangeWaiters
from tests.waiting import turn_loop, wait_until_async

PLACE = Allocation(7, 1, ("localhost", "127.0.0.1"), 0, 1)


class Daemon:
    """An agent whose one program is in a state, with what it asked the daemon for."""

    def __init__(
        self,
        state: State = State.STOPPED,
        code: int | None = None,
        place: Allocation = PLACE,
        wanted: int = PLACE.size,
        verdict: Path | None = None,
        stops_alone: bool = False,
        decided_end: tuple[Cause, str] | None = None,
        has_own_folders: bool = False,
        **facts: bool,
    ) -> None:
        self.left = 0
        self.recalled: SeenDivergence | None = None
        self.changes = ChangeWaiters()
        self.posted: list[object] = []
        self.is_leaving = False
        self.runner = SimpleNamespace(
            state=state,
            name="train",
            attempt=1,
            standby=None,
            divergence=None,
            recall_divergence=self._recall_divergence,
            post=self.posted.append,
            wanted=True,
            reason="terminated by SIGKILL",
            facts=SimpleNamespace(
                **{"launched": True, "waits_for_host": False, "waits_for_storage": False, "notice": None, **facts},
                current=SimpleNamespace(decided_end=decided_end),
                policy=SimpleNamespace(is_job=True),
            ),
            wait_until=self.changes.wait_until,
            records=SimpleNamespace(process=SimpleNamespace(last_exit=SimpleNamespace(code=code))),
        )
        self.place = GangPlace(place)
        self.agent = GangAgent(
            self.place,
            GangSettings("s", 1.0, wanted, has_own_folders, verdict, stops_alone),
            {"train": self.runner},  # type: ignore[dict-item]
            self._leave,
            lambda: self.is_leaving,
        )

    def _leave(self) -> None:
        self.left += 1

    async def _recall_divergence(self) -> SeenDivergence | None:
        return self.recalled


@pytest.mark.parametrize(
    ("daemon", "status"),
    [
        ({"code": 143}, StepExit.SAVED),
        ({"state": State.BACKOFF, "waits_for_host": True}, StepExit.NODE_LEAVES),
        ({"state": State.BACKOFF, "waits_for_storage": True}, StepExit.STORAGE_AWAY),
        ({"state": State.RUNNING}, None),
        ({"launched": False}, None),
        ({"state": State.SUCCEEDED}, None),
        ({"state": State.FAILED}, None),
    ],
)
async def test_the_end_of_its_worker_ends_the_generation(daemon: dict[str, object], status: StepExit | None) -> None:
    one = Daemon(**daemon)  # type: ignore[arg-type]
    one.agent.on_change()
    assert (one.agent.ends_with, one.left) == (status, 0 if status is None else 1)


SPARED = replace(PLACE, nodes=("localhost", "127.0.0.1", "127.0.0.2"))


@pytest.mark.parametrize(
    ("daemon", "status"),
    [
        ({"state": State.BACKOFF, "waits_for_host": True}, StepExit.DONE),
        ({"state": State.BACKOFF, "waits_for_host": True, "launched": False}, StepExit.DONE),
        ({"state": State.BACKOFF, "waits_for_host": True, "place": replace(SPARED, rank=0)}, StepExit.NODE_LEAVES),
        ({"code": 143}, None),  # another rank was told to, and the chief hears why
        ({"code": 143, "decided_end": (Cause.STOPPED, "stopped (stop)")}, StepExit.SAVED),
    ],
)
async def test_with_spare_nodes_a_notice_of_one_node_is_its_own(
    daemon: dict[str, object], status: StepExit | None
) -> None:
    one = Daemon(**{"place": SPARED, "wanted": 2, **daemon})  # type: ignore[arg-type]
    one.agent.on_change()
    assert (one.agent.ends_with, one.left) == (status, 0 if status is None else 1)


async def test_a_daemon_that_was_told_to_exit_says_why_itself() -> None:
    """Slurm's warning (SIGUSR1) has to reach the batch script as such, though the worker has stopped."""
    one = Daemon(code=143)
    one.is_leaving = True
    one.agent.on_change()
    assert (one.agent.ends_with, one.left) == (None, 0)


class Heard:
    """What the chief's daemon, a real link of its own, hears of rank 1, and says."""

    def __init__(self) -> None:
        self.messages: list[GangMessage] = []
        self.joined: list[Join] = []

    def joins_with(self) -> tuple[int, str, SeenDivergence | None]:
        raise AssertionError("the chief joins nobody")

    def on_joined(self, rank: int, joins: Join) -> None:
        self.joined.append(joins)

    def on_begin(self, turn: int, nodes: tuple[int, ...], addresses: tuple[str, ...]) -> None:
        raise AssertionError("the chief begins")

    def on_message(self, rank: int, message: GangMessage) -> None:
        if not isinstance(message, Alive):
            self.messages.append(message)

    def on_lost(self, rank: int, text: str) -> None:
        pass

    def on_refused(self, refused: Refused) -> None:
        raise AssertionError(refused.reason)


async def test_a_worker_that_ended_begins_again_with_all_others_and_the_daemon_stays() -> None:
    heard = Heard()
    chief = GangLink(replace(PLACE, rank=0), "s", gang.link_port(PLACE), heard)
    one = Daemon(launched=False)
    await chief.open()
    gathering = asyncio.create_task(one.agent.gather())
    try:
        await wait_until_async(lambda: heard.joined)
        chief.begin(0, (0, 1), ("localhost:5000", heard.joined[0].address))
        assert '"index": 1' in (await gathering or "")

        one.runner.facts.launched = True
        one.runner.state = State.BACKOFF  # it has failed before, and pauses
        one.agent.on_change()
        await wait_until_async(lambda: heard.messages)
        assert heard.messages == [Broken(0, "its worker ended: terminated by SIGKILL")]
        chief.send(Over(1, "why"))
        await wait_until_async(lambda: GangBroken("why") in one.posted)
        one.agent.on_change()
        chief.send(Over(1, "why"))
        await wait_until_async(lambda: one.posted.count(GangBroken("why")) == 2)
        assert len(heard.messages) == 1, "all wait for its pause"

        one.runner.state = State.STOPPED
        one.agent.on_change()
        one.agent.on_change()
        await wait_until_async(lambda: len(heard.messages) > 1)
        (_, ready) = heard.messages
        assert isinstance(ready, WithoutWorker) and ready.turn == 1
        assert ready.address != heard.joined[0].address
        assert GangBegins() not in one.posted
        chief.begin(1, (0, 1), ("localhost:6000", ready.address))
        await wait_until_async(lambda: GangBegins() in one.posted)
        place = one.place
        assert (place.allocation.generation, place.cluster) == (
            2,
            gang.cluster_text(("localhost:6000", ready.address), 1),
        )
        assert (one.left, one.agent.ends_with) == (0, None)
    finally:
        await one.agent.close(StepExit.DONE)
        await chief.close()


async def test_what_its_worker_has_seen_diverge_is_said_before_every_turn_until_one_has_restored() -> None:
    heard = Heard()
    chief = GangLink(replace(PLACE, rank=0), "s", gang.link_port(PLACE), heard)
    one = Daemon(launched=False)
    one.recalled = SeenDivergence(21, 3)  # of an earlier daemon's worker
    await chief.open()
    gathering = asyncio.create_task(one.agent.gather())
    try:
        await wait_until_async(lambda: heard.joined)
        assert heard.joined[0].diverged == SeenDivergence(21, 3)
        chief.begin(0, (0, 1), ("localhost:5000", heard.joined[0].address))
        await gathering

        one.runner.facts.launched = True
        for turn, seen in ((1, SeenDivergence(14, 4)), (2, None)):
            one.runner.divergence = seen
            chief.send(Over(turn, "why"))
            await wait_until_async(lambda: len(heard.messages) == turn)  # noqa: B023 - ends before the next
            ready = heard.messages[-1]
            assert isinstance(ready, WithoutWorker)
            assert ready.diverged == seen
            chief.begin(turn, (0, 1), ("localhost:6000", ready.address))
            await wait_until_async(lambda: one.posted.count(GangBegins()) == turn)  # noqa: B023
    finally:
        await one.agent.close(StepExit.DONE)
        await chief.close()


@pytest.mark.parametrize("own_of", [0, 1])
async def test_nodes_of_which_one_has_folders_of_its_own_and_another_shares_end_at_once_and_say_why(
    own_of: int,
) -> None:
    """Else one would wait until startup_timeout for what the other never says."""
    chief = Daemon(launched=False, place=replace(PLACE, rank=0), has_own_folders=own_of == 0)
    one = Daemon(launched=False, has_own_folders=own_of == 1)
    try:
        assert await asyncio.gather(chief.agent.gather(), one.agent.gather()) == [None, None]
        assert chief.agent.ends_with == StepExit.FAILED
        (broken,) = (event for event in chief.posted if isinstance(event, GangBroken))
        assert "checkpoint_dir_shared is" in str(broken)
        assert "rank 1 (127.0.0.1)" in str(broken) and "give all nodes the same file" in str(broken)
        (broken,) = (event for event in one.posted if isinstance(event, GangBroken))
        assert "give all nodes the same file" in str(broken)
    finally:
        await one.agent.close(StepExit.DONE)
        await chief.agent.close(StepExit.DONE)


async def test_the_chief_learns_what_any_node_has_seen_before_it_begins() -> None:
    chief, one = Daemon(launched=False, place=replace(PLACE, rank=0)), Daemon(launched=False)
    one.recalled = SeenDivergence(21, 3)
    try:
        clusters = await asyncio.gather(chief.agent.gather(), one.agent.gather())
        assert all(clusters)
        assert chief.place.diverged == (SeenDivergence(21, 3),)
    finally:
        await one.agent.close(StepExit.DONE)
        await chief.agent.close(StepExit.DONE)


async def test_a_spare_node_says_for_whom_it_waits_and_takes_a_rank_when_it_is_named() -> None:
    heard = Heard()
    place = replace(PLACE, rank=2, nodes=("localhost", "127.0.0.1", "127.0.0.2"))
    chief = GangLink(replace(place, rank=0), "s", gang.link_port(place), heard)
    spare = Daemon(launched=False, place=place, wanted=2)
    await chief.open()
    gathering = asyncio.create_task(spare.agent.gather())
    try:
        await wait_until_async(lambda: heard.joined)
        chief.begin(0, (0, 1), ("localhost:5000", "127.0.0.1:5001"))
        await wait_until_async(lambda: spare.place.spare_of)
        assert spare.place.spare_of == ("localhost", "127.0.0.1")
        assert not gathering.done()

        chief.send(Over(1, "why"))
        await wait_until_async(lambda: heard.messages)
        (ready,) = heard.messages
        assert isinstance(ready, WithoutWorker)
        chief.begin(1, (0, 2), ("localhost:6000", ready.address))
        assert '"index": 1' in (await gathering or "")
        assert (spare.place.spare_of, spare.place.allocation.nodes) == (None, ("localhost", "127.0.0.2"))
        assert spare.place.allocation.generation == place.generation + 1
    finally:
        await spare.agent.close(StepExit.DONE)
        await chief.close()


async def until_spare(heard: Heard, chief: GangLink, spare: Daemon) -> None:
    await wait_until_async(lambda: heard.joined)
    chief.begin(0, (0, 1), ("localhost:5000", "127.0.0.1:5001"))
    await wait_until_async(lambda: spare.place.spare_of)


async def test_a_spare_node_leaves_once_a_notice_says_that_nothing_could_be_saved_here_any_more() -> None:
    heard = Heard()
    place = replace(SPARED, rank=2)
    chief = GangLink(replace(place, rank=0), "s", gang.link_port(place), heard)
    spare = Daemon(launched=False, place=place, wanted=2)
    facts = ProgramFacts(Policy("train", is_job=True, is_gang=True))
    spare.runner.facts = facts
    await chief.open()
    gathering = asyncio.create_task(spare.agent.gather())
    try:
        await until_spare(heard, chief, spare)
        now = asyncio.get_running_loop().time()
        for in_s, has_left in ((3600.0, False), (facts.policy.notice_margin, True)):
            facts.notice = Notice(
                "file", "rack", NoticeKind.PREEMPTION, Certainty.CERTAIN, now + in_s, is_cancellable=True, text="rack 7"
            )
            spare.changes.wake()
            await turn_loop()
            assert spare.agent.ends_with is (StepExit.DONE if has_left else None)
        assert await gathering is None
        await wait_until_async(lambda: heard.messages)
        assert heard.messages[0] == Leave(StepExit.NODE_LEAVES, "its host goes away (file: rack 7)", alone=True)
    finally:
        await spare.agent.close(StepExit.DONE)
        await chief.close()


async def test_a_spare_node_waits_in_peace_beside_a_notice_that_is_over() -> None:
    spare = Daemon(place=replace(SPARED, rank=2), wanted=2)
    facts = spare.runner.facts = ProgramFacts(Policy("train", is_job=True, is_gang=True))
    over_at = asyncio.get_running_loop().time() - 2 * facts.policy.notice_grace
    facts.notice = Notice("file", "r", NoticeKind.PREEMPTION, Certainty.CERTAIN, over_at, is_cancellable=True, text="")
    looks = []

    async def wait_until(look: Callable[[], bool | None]) -> None:
        looks.append(look())
        await asyncio.Event().wait()

    spare.runner.wait_until = wait_until
    departure = NodeDeparture(spare.place.allocation, 2, GangLink(spare.place.allocation, "s", 0, Heard()))
    departure.watch_notice(spare.runner, lambda runner: pytest.fail("it left"))  # type: ignore[arg-type]
    await turn_loop()
    departure.stop_watching()

    assert looks == [None], "it looks again when the notice changes, and not before"


async def test_a_node_that_is_a_spare_one_again_is_watched_again() -> None:
    """A notice that came while it trained was withdrawn since, or an update has given the program another runner."""
    spare = Daemon(place=replace(SPARED, rank=2), wanted=2)
    facts = spare.runner.facts = ProgramFacts(Policy("train", is_job=True, is_gang=True))
    gone_at = asyncio.get_running_loop().time() + facts.policy.notice_margin
    facts.notice = Notice("file", "r", NoticeKind.PREEMPTION, Certainty.CERTAIN, gone_at, is_cancellable=True, text="")
    departure = NodeDeparture(spare.place.allocation, 2, GangLink(spare.place.allocation, "s", 0, Heard()))
    asked = list[object]()

    for _ in range(2):
        departure.watch_notice(spare.runner, asked.append)  # type: ignore[arg-type]
        await turn_loop()
    departure.stop_watching()

    assert asked == [spare.runner, spare.runner]


async def test_a_rank_leaves_between_two_turns_if_its_host_goes_before_a_step_could_be_saved() -> None:
    heard = Heard()
    chief = GangLink(replace(SPARED, rank=0), "s", gang.link_port(SPARED), heard)
    one = Daemon(launched=False, place=SPARED, wanted=2)
    await chief.open()
    gathering = asyncio.create_task(one.agent.gather())
    try:
        await wait_until_async(lambda: heard.joined)
        chief.begin(0, (0, 1), ("localhost:5000", heard.joined[0].address))
        await gathering
        facts = one.runner.facts = ProgramFacts(Policy("train", is_job=True, is_gang=True), launched=True)
        gone_at = asyncio.get_running_loop().time() + 20.0
        facts.notice = Notice(
            "file", "rack", NoticeKind.PREEMPTION, Certainty.CERTAIN, gone_at, is_cancellable=True, text=""
        )
        chief.send(Over(1, "another worker died"))
        await wait_until_async(lambda: heard.messages)
        assert heard.messages[0] == Leave(StepExit.NODE_LEAVES, "its host goes away (file)", alone=True)
        assert (one.agent.ends_with, one.left) == (StepExit.DONE, 1)
    finally:
        await one.agent.close(StepExit.DONE)
        await chief.close()


@pytest.mark.parametrize("is_spare", [True, False])
async def test_a_pod_that_is_evicted_says_that_only_its_node_leaves(is_spare: bool) -> None:
    heard = Heard()
    place = replace(SPARED, rank=2)
    chief = GangLink(replace(place, rank=0), "s", gang.link_port(place), heard)
    pod = Daemon(launched=False, place=place, wanted=2, stops_alone=True)
    await chief.open()
    gathering = asyncio.create_task(pod.agent.gather())
    try:
        if is_spare:
            await until_spare(heard, chief, pod)
        else:
            await wait_until_async(lambda: heard.joined)
            chief.begin(0, (0, 2), ("localhost:5000", heard.joined[0].address))
            await gathering
            pod.runner.facts.launched = True
        pod.is_leaving = True
        if not is_spare:  # its worker has stopped
            pod.agent.on_change()
            pod.agent.on_change()
            await wait_until_async(lambda: heard.messages)
            chief.send(Over(1, "it left; a spare node takes its rank"))
            await wait_until_async(lambda: pod.posted)
        await pod.agent.close(StepExit.SAVED)
        await wait_until_async(lambda: len(heard.messages) > 1)
        assert heard.messages[0] == Leave(StepExit.NODE_LEAVES, "its pod goes away", alone=True)
        assert [type(message) for message in heard.messages] == [Leave, Leave], "it takes no part in another turn"
    finally:
        gathering.cancel()
        await chief.close()


@pytest.mark.parametrize(
    ("own", "left", "verdict"),
    [
        (StepExit.DONE, {}, StepExit.DONE),
        (StepExit.SAVED, {1: StepExit.NODE_LEAVES}, StepExit.NODE_LEAVES),
        (StepExit.AGAIN, {1: StepExit.FAILED}, StepExit.FAILED),
        (StepExit.DONE, {2: StepExit.AGAIN}, StepExit.DONE),
    ],
)
async def test_the_chief_leaves_the_verdict_of_those_that_have_a_rank(
    tmp_path: Path, own: StepExit, left: dict[int, StepExit], verdict: StepExit
) -> None:
    place = replace(PLACE, rank=0, nodes=("localhost", "127.0.0.1", "127.0.0.2"))
    chief = Daemon(place=place, wanted=2, verdict=tmp_path / "verdict")
    for rank, status in left.items():
        chief.agent.on_message(rank, Leave(status, "why"))

    await chief.agent.close(own)

    assert allocation.parse_verdict((tmp_path / "verdict").read_text(), place.generation) == verdict


async def test_what_a_node_that_leaves_alone_exits_with_does_not_hide_that_it_leaves(tmp_path: Path) -> None:
    chief = Daemon(place=replace(SPARED, rank=0), wanted=2, verdict=tmp_path / "verdict")
    chief.agent.on_message(1, Leave(StepExit.NODE_LEAVES, "its host goes away", alone=True))
    chief.agent.on_message(1, Leave(StepExit.DONE, "this node has left the gang"))
    assert chief.place.left == ("127.0.0.1",)

    await chief.agent.close(StepExit.SAVED)

    verdict = allocation.parse_verdict((tmp_path / "verdict").read_text(), SPARED.generation)
    assert verdict == StepExit.NODE_LEAVES


def test_one_node_is_a_cluster_of_one_for_a_job_that_can_use_several() -> None:
    def runner(**job: object) -> SimpleNamespace:
        return SimpleNamespace(config=SimpleNamespace(job=SimpleNamespace(**{"workers": None, **job})))

    plain = SimpleNamespace(config=SimpleNamespace(job=None))
    assert cluster_of_one([plain, runner(strategy="mirrored"), runner(strategy="multiworker", workers=2)]) == {}  # type: ignore[list-item]
    (text,) = cluster_of_one([runner(strategy="multiworker")]).values()  # type: ignore[list-item]
    assert '"worker": ["localhost:' in text
