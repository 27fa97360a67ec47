"""Spare nodes under a real Slurm: one takes the rank of a node that is lost, without another run of the job."""

import time

import pytest

from supervisor.protocol.checkpoints import selection
from supervisor.protocol.tensorbundle import verify
from tests.slurm.cluster import Cluster, SlurmJob
from tests.slurm.jobs import Gang
from tests.slurm.test_gang import DAEMON, PATIENCE_S, WORKER, end_in_the_next_run, end_of, until_training

pytestmark = [
    pytest.mark.slow, pytest.mark.integration, pytest.mark.tensorflow, pytest.mark.minutes, pytest.mark.timeout(500),
]  # fmt: skip

SPARE = 2
"""The third node: two train."""
STEPS = '"state": "RUNNING"'


class Spared(Gang):
    """Two nodes that train, and a spare one."""

    def __init__(self, cluster: Cluster, name: str, pause: float = 0.1, keys: str = "", standby: str = "off") -> None:
        super().__init__(cluster, name, pause=pause, keys=f"nodes=2\n{keys}", standby=standby)

    def begin(self, *options: str) -> SlurmJob:
        return self.submit("--nodes=3", "--no-kill", *options)

    def log(self, job: SlurmJob, node: int) -> str:
        """Of the daemon of a node."""
        file = self.cluster.shared / f"stepkeeper-{job.id}" / self.cluster.nodes[node].name / "supervisord.log"
        return file.read_text(errors="replace") if file.exists() else ""


def switch_off(cluster: Cluster, node: int) -> float:
    """As a power failure does: nothing says that it is gone. Returns when (monotonic)."""
    cluster.nodes[node].cut()
    off_at = time.monotonic()
    cluster.nodes[node].power_off()
    return off_at


def until_stepping(gang: Spared, job: SlurmJob, times: int) -> None:
    """The chief's worker has taken its first step in so many turns, and so have all."""
    job.until(lambda: gang.log(job, 0).count(STEPS) >= times, "the spare node trains", PATIENCE_S)


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster) -> list[str]:
    gang = Spared(cluster, "undisturbed", pause=0.0, standby="auto")
    job = gang.begin()
    end_of(gang, job)
    assert '"gang.spare"' in gang.log(job, SPARE)
    assert "forcing job termination" not in job.output, "the spare node leaves by itself, with what it has loaded"
    return gang.ends()


def test_a_node_that_is_switched_off(cluster: Cluster, undisturbed: list[str]) -> None:
    gang = Spared(cluster, "off", pause=0.5, keys="save_shards=always")
    job = gang.begin()
    until_training(gang, job)
    off_at = switch_off(cluster, 1)
    try:
        until_stepping(gang, job, 2)
        print(f"from power-off to the first new step: {time.monotonic() - off_at:.1f} s")
        job.until_state("COMPLETED", patience_s=PATIENCE_S)
        job.until(lambda: not cluster.leftovers(), "nothing runs on any node")
    finally:
        cluster.nodes[1].start()
        cluster.until_idle()
    assert gang.ends() == undisturbed
    assert job.field("Restarts") == "0"
    assert "next: again" not in job.output
    newest = gang.checkpoints / str(selection.committed_checkpoints(gang.checkpoints)[0])
    assert verify.verify_bundle(newest / "ckpt").shards == 2, "the node that was a spare one writes its share"


def test_processes_that_have_imported_everything_wait_on_the_spare_node_too(
    cluster: Cluster, undisturbed: list[str]
) -> None:
    gang = Spared(cluster, "off-standby", pause=2.0, standby="auto")
    job = gang.begin()
    until_training(gang, job)
    job.until(lambda: '"standby.ready"' in gang.log(job, SPARE), "it waits", PATIENCE_S)
    off_at = switch_off(cluster, 1)
    try:
        until_stepping(gang, job, 2)
        print(f"from power-off to the first new step, with standby: {time.monotonic() - off_at:.1f} s")
        job.until_state("COMPLETED", patience_s=PATIENCE_S)
    finally:
        cluster.nodes[1].start()
        cluster.until_idle()
    assert gang.ends() == undisturbed
    assert job.field("Restarts") == "0"
    assert '"was_standby": true' in gang.log(job, SPARE)


def test_the_spare_node_is_lost_too(cluster: Cluster, undisturbed: list[str]) -> None:
    gang = Spared(cluster, "both-off", pause=1.0)
    job = gang.begin()
    until_training(gang, job)
    try:
        switch_off(cluster, 1)
        job.until(lambda: len(gang.starts(job)) >= 4, "the spare node trains", PATIENCE_S)
        off_at = switch_off(cluster, SPARE)
        job.until(lambda: job.field("Restarts") == "1", "it is queued again", PATIENCE_S)
        print(f"from power-off to the requeue: {time.monotonic() - off_at:.1f} s")
        assert "those that are left are too few" in job.output
        gang.set_pause(0.0)
    finally:
        for node in (1, SPARE):
            cluster.nodes[node].start()
    job.start_now()
    job.until_state("COMPLETED", patience_s=PATIENCE_S)
    cluster.until_idle()
    assert gang.ends() == undisturbed


def test_a_node_whose_daemon_is_killed_twice_is_not_taken_again(cluster: Cluster, undisturbed: list[str]) -> None:
    gang = Spared(cluster, "flapping", pause=1.0)
    job = gang.begin()
    until_training(gang, job)
    node = cluster.nodes[1]
    assert node.kill(DAEMON)
    node.kill(WORKER)
    job.until(lambda: '"gang.spare"' in gang.log(job, 1), "it has come back as the spare node", PATIENCE_S)
    job.until(lambda: len(gang.starts(job)) >= 4, "the other two train", PATIENCE_S)
    assert node.kill(DAEMON)
    job.until(lambda: "has failed 2 times and is not taken again" in gang.log(job, 1), "it is out", PATIENCE_S)
    job.until(lambda: not node.find(DAEMON), "it has no daemon")
    gang.set_pause(0.0)
    end_of(gang, job)
    assert gang.ends() == undisturbed
    assert "next: again" not in job.output
    assert len(gang.starts(job)) == 4


def test_a_link_that_is_cut_and_mended(cluster: Cluster, undisturbed: list[str]) -> None:
    gang = Spared(cluster, "cut", pause=2.0)  # it has to come back before the end
    job = gang.begin()
    until_training(gang, job)
    node = cluster.nodes[1]
    node.cut()
    try:
        job.until(lambda: not node.find(WORKER), "the node that was cut off ends its worker", PATIENCE_S)
        until_stepping(gang, job, 2)
    finally:
        node.mend()
    job.until(lambda: '"gang.spare"' in gang.log(job, 1), "it has come back as the spare node", PATIENCE_S)
    end_of(gang, job)
    assert gang.ends() == undisturbed
    assert job.field("Restarts") == "0"
    assert "next: again" not in job.output


def test_a_daemon_alone_is_killed_and_its_worker_trains_on(cluster: Cluster, undisturbed: list[str]) -> None:
    gang = Spared(cluster, "daemon-alone")
    job = gang.begin()
    until_training(gang, job)
    assert cluster.nodes[1].kill(DAEMON)
    end_of(gang, job)
    assert gang.ends() == undisturbed
    assert "next: again" not in job.output


def test_the_node_of_the_chief_is_lost(cluster: Cluster, undisturbed: list[str]) -> None:
    gang = Spared(cluster, "chief-off", pause=0.5)
    job = gang.begin()
    until_training(gang, job)
    off_at = switch_off(cluster, 0)
    try:
        job.until(lambda: job.field("Restarts") == "1", "it is queued again", PATIENCE_S)
        print(f"from power-off to the requeue: {time.monotonic() - off_at:.1f} s")
        gang.set_pause(0.0)
    finally:
        cluster.nodes[0].start()
    job.start_now()
    job.until_state("COMPLETED", patience_s=PATIENCE_S)
    cluster.until_idle()
    assert gang.ends() == undisturbed


def test_a_notice_of_one_node_saves_all_at_one_step_and_the_spare_node_takes_its_rank(
    cluster: Cluster, undisturbed: list[str]
) -> None:
    gang = Spared(cluster, "noticed", pause=1.0)
    job = gang.begin()
    until_training(gang, job)
    noticed_at = time.monotonic()
    gang.give_notice(job, 1)
    job.until(lambda: '"gang.left"' in gang.log(job, 1), "the node has left", PATIENCE_S)
    left_at = time.monotonic()
    saved = gang.newest()
    until_stepping(gang, job, 2)
    print(f"notice to leaving: {left_at - noticed_at:.1f} s, to the first new step: {time.monotonic() - left_at:.1f} s")
    end_of(gang, job)
    assert gang.ends() == undisturbed
    assert job.field("Restarts") == "0"
    assert "next: again" not in job.output and "next: requeue" not in job.output
    assert "a spare node takes its rank" in gang.log(job, 0)
    assert '"why": "its host goes away (file: ' in gang.log(job, 1)
    assert [step for _, step in gang.starts(job)].count(saved) == 2, "nothing was lost"


def test_a_notice_of_the_spare_node_disturbs_nobody_and_with_none_left_the_job_is_queued_again(
    cluster: Cluster, undisturbed: list[str]
) -> None:
    gang = Spared(cluster, "two-noticed", pause=1.0)
    job = gang.begin()
    until_training(gang, job)
    gang.give_notice(job, SPARE)
    job.until(lambda: not cluster.nodes[SPARE].find(DAEMON), "the spare node has left", PATIENCE_S)
    assert '"gang.left"' in gang.log(job, SPARE)
    newest = gang.newest()
    job.until(lambda: gang.newest() > newest, "the others train on", PATIENCE_S)
    assert len(gang.starts(job)) == 2
    gang.give_notice(job, 1)
    end_in_the_next_run(gang, job)
    assert gang.ends() == undisturbed


@pytest.mark.nightly  # as one of a gang without spare nodes, in test_gang
def test_a_notice_of_the_first_node_saves_all_and_the_job_is_queued_again(
    cluster: Cluster, undisturbed: list[str]
) -> None:
    gang = Spared(cluster, "chief-noticed", pause=1.0)
    job = gang.begin()
    until_training(gang, job)
    gang.give_notice(job, 0)
    end_in_the_next_run(gang, job)
    assert gang.ends() == undisturbed
    assert '"gang.again"' not in gang.log(job, 0)
