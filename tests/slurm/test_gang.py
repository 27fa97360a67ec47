"""Several nodes train one job under a real Slurm: whatever fails, all begin again, and the bits are the same."""

import re

import pytest

from supervisor.protocol.checkpoints import selection
from supervisor.protocol.tensorbundle import verify
from tests.slurm.cluster import Cluster, SlurmJob
from tests.slurm.jobs import FittingGang, Gang, Seen, Submission

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.tensorflow, pytest.mark.timeout(400)]

WORKER, DAEMON, COMMIT = "together.py", "supervisor.daemon", '"event": "checkpoint.committed"'
PATIENCE_S = 200.0  # three processes import TensorFlow on two cores


def end_of(gang: Submission, job: SlurmJob, state: str = "COMPLETED") -> None:
    """It ended so, and nothing is left on any node."""
    job.until_state(state, patience_s=PATIENCE_S)
    job.until(lambda: not gang.cluster.leftovers(), "nothing runs on any node")
    for node in gang.cluster.nodes:
        assert not list(node.own_disk.glob(f"stepkeeper-*-{job.id}")), job.output


def end_in_the_next_run(gang: Gang, job: SlurmJob) -> None:
    """All have saved because a node goes away; Slurm queues the job again, and it ends without more pauses."""
    job.until_state("PENDING", patience_s=PATIENCE_S)
    assert "status 43" in job.output and "next: again" not in job.output
    gang.set_pause(0.0)
    job.start_now()
    end_of(gang, job)


def until_training(gang: Gang, job: SlurmJob, times: int = 1) -> None:
    """All ranks have begun to train so many times, and a checkpoint is there."""
    job.until(lambda: len(gang.starts(job)) >= times * gang.nodes, "all ranks train", PATIENCE_S)
    job.until(lambda: gang.newest() > 0, "a checkpoint is there", PATIENCE_S)


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster) -> list[str]:
    gang = Gang(cluster, "undisturbed", pause=0.0)
    job = gang.begin()
    end_of(gang, job)
    return gang.ends()


def resumed_once(gang: Gang, job: SlurmJob, times: int = 1) -> None:
    """All ranks began anew so many times, each time at one step after the first."""
    begun = gang.starts(job)
    steps = [[step for rank, step in begun if rank == number] for number in range(gang.nodes)]
    assert steps == [steps[0]] * gang.nodes
    assert len(steps[0]) == times + 1, f"{job.output}\n{gang.printed(job)}"
    assert all(step > 0 for step in steps[0][1:])


def test_a_worker_that_is_killed(cluster: Cluster, undisturbed: list[str]) -> None:
    gang = Gang(cluster, "worker")
    job = gang.begin()
    until_training(gang, job)
    assert cluster.nodes[1].kill(WORKER)
    end_of(gang, job)
    assert gang.ends() == undisturbed
    resumed_once(gang, job)
    assert "next: again" not in job.output, "the daemons begin again, and the batch script has nothing to do"
    assert gang.logged(job, "daemon.ready") == [1, 1]
    commits = [line.partition('"step": ')[2].partition(",")[0] for line in job.output.splitlines() if COMMIT in line]
    assert commits and len(commits) == len(set(commits)), "one line a commit, and not one a node"


def test_each_node_writes_its_share_and_one_is_killed(cluster: Cluster, undisturbed: list[str]) -> None:
    gang = Gang(cluster, "shares", keys="save_shards=always")
    job = gang.begin()
    until_training(gang, job)
    assert cluster.nodes[1].kill(WORKER)
    end_of(gang, job)
    assert gang.ends() == undisturbed
    resumed_once(gang, job)
    newest = gang.checkpoints / str(selection.committed_checkpoints(gang.checkpoints)[0])
    assert verify.verify_bundle(newest / "ckpt").shards == 2


@pytest.mark.minutes
def test_processes_that_have_imported_everything_take_over_on_all_nodes(
    cluster: Cluster, undisturbed: list[str]
) -> None:
    gang = Gang(cluster, "standby", pause=3.0, standby="auto")  # it loads in the time that is left over
    job = gang.begin()
    until_training(gang, job)
    job.until(lambda: (found := gang.logged(job, "standby.ready")) and min(found) > 0, "they wait", PATIENCE_S)
    pids = dict(re.findall(r"worker (\d) pid (\d+) begins", gang.printed(job)))
    assert cluster.nodes[1].kill_own(int(pids["1"]))
    end_of(gang, job)
    assert gang.ends() == undisturbed
    resumed_once(gang, job)
    logs = (gang.cluster.shared / f"stepkeeper-{job.id}").glob("*/supervisord.log")
    starts = [[line for line in log.read_text().splitlines() if '"worker.spawned"' in line] for log in logs]
    assert len(starts) == 2 and all('"was_standby": true' in second for _, second in starts)


@pytest.mark.minutes
def test_fit_of_which_a_worker_is_killed(cluster: Cluster) -> None:
    calm = FittingGang(cluster, "fit", pause=0.0)
    end_of(calm, calm.begin())
    gang = FittingGang(cluster, "fit-killed", pause=1.0)
    job = gang.begin()
    until_training(gang, job)
    assert cluster.nodes[1].kill(WORKER)
    gang.set_pause(0.0)
    end_of(gang, job)
    assert gang.ends() == calm.ends()
    resumed_once(gang, job)


@pytest.mark.minutes
def test_a_daemon_that_is_killed_and_its_worker_left(cluster: Cluster, undisturbed: list[str]) -> None:
    gang = Gang(cluster, "daemon")
    job = gang.begin()
    until_training(gang, job)
    assert cluster.nodes[1].kill(DAEMON)
    end_of(gang, job)
    assert gang.ends() == undisturbed
    resumed_once(gang, job)


@pytest.mark.minutes
def test_the_chief_and_its_worker_killed_and_the_newest_checkpoint_damaged(
    cluster: Cluster, undisturbed: list[str]
) -> None:
    gang = Gang(cluster, "chief")
    job = gang.begin()
    until_training(gang, job)
    job.until(lambda: gang.newest() > 7, "two checkpoints are there")
    newest = gang.checkpoints / str(selection.committed_checkpoints(gang.checkpoints)[0])
    (damaged,) = newest.glob("ckpt.data-*")
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    assert cluster.nodes[0].kill(DAEMON)
    cluster.nodes[0].kill(WORKER)
    damaged.write_bytes(content)
    end_of(gang, job)
    assert gang.ends() == undisturbed
    resumed_once(gang, job)
    assert list((gang.checkpoints / "quarantine").iterdir())


@pytest.mark.minutes
def test_a_link_that_is_cut_and_mended(cluster: Cluster, undisturbed: list[str]) -> None:
    gang = Gang(cluster, "link")
    job = gang.begin()
    until_training(gang, job)
    node = cluster.nodes[1]
    node.cut()
    job.until(lambda: not node.find(WORKER), "the rank that was cut off ends its worker", PATIENCE_S)
    job.until(lambda: not cluster.nodes[0].find(WORKER), "the chief ends its own", PATIENCE_S)
    node.mend()
    end_of(gang, job)
    assert gang.ends() == undisturbed
    resumed_once(gang, job)


@pytest.mark.minutes
def test_scancel(cluster: Cluster) -> None:
    gang = Gang(cluster, "cancel", steps=4000)
    job = gang.begin()
    until_training(gang, job)
    before = gang.newest()
    cluster.run("scancel", job.id)
    end_of(gang, job, "CANCELLED")
    assert gang.newest() > before and gang.newest() % 7


@pytest.mark.minutes
def test_a_daemon_and_its_worker_killed(cluster: Cluster, undisturbed: list[str]) -> None:
    gang = Gang(cluster, "both")
    job = gang.begin()
    until_training(gang, job)
    assert cluster.nodes[1].kill(DAEMON)
    cluster.nodes[1].kill(WORKER)
    end_of(gang, job)
    assert gang.ends() == undisturbed
    resumed_once(gang, job)


@pytest.mark.minutes
def test_preempted_by_a_higher_partition(cluster: Cluster, undisturbed: list[str]) -> None:
    gang = Gang(cluster, "preempted", pause=2.0)
    job = gang.begin("--nodelist=n1,n2", "--exclusive")
    until_training(gang, job)
    before = gang.newest()
    other = cluster.submit("--partition=high", "--nodelist=n2", "--exclusive", "--wrap=sleep 1")
    job.until_state("PENDING", patience_s=PATIENCE_S)
    assert gang.newest() > before
    gang.set_pause(0.0)
    other.until_state("COMPLETED")
    job.start_now()
    end_of(gang, job)
    assert "status 43" in job.output and "next: again" not in job.output
    assert gang.ends() == undisturbed
    resumed_once(gang, job)


@pytest.mark.minutes
def test_before_the_time_limit_all_save_at_one_step_and_the_job_is_queued_again(
    cluster: Cluster, undisturbed: list[str]
) -> None:
    gang = Gang(cluster, "limit", pause=2.0)
    job = gang.begin("--signal=USR1@120")
    until_training(gang, job)
    cluster.run("scontrol", "update", f"JobId={job.id}", "TimeLimit=3")  # the signal comes within a minute
    job.until_state("PENDING", patience_s=PATIENCE_S)
    assert "status 43" in job.output and "next: again" not in job.output
    before = gang.newest()
    cluster.run("scontrol", "update", f"JobId={job.id}", "TimeLimit=10")
    gang.set_pause(0.0)
    job.start_now()
    end_of(gang, job)
    assert gang.ends() == undisturbed
    resumed_once(gang, job)
    assert {step for _, step in gang.starts(job)} == {0, before}


@pytest.mark.minutes
def test_a_notice_of_one_node_saves_all_at_one_step_and_the_job_is_queued_again(
    cluster: Cluster, undisturbed: list[str]
) -> None:
    gang = Gang(cluster, "notice", pause=1.0)
    job = gang.begin("--nodelist=n1,n2")
    until_training(gang, job)
    gang.give_notice(job, 1)
    end_in_the_next_run(gang, job)
    assert gang.ends() == undisturbed
    resumed_once(gang, job)


@pytest.mark.minutes
def test_a_node_that_is_lost_for_good(cluster: Cluster, undisturbed: list[str]) -> None:
    gang = Gang(cluster, "lost", pause=0.5)
    job = gang.begin("--nodelist=n1,n2")
    until_training(gang, job)
    cluster.nodes[1].power_off()
    try:
        job.until(lambda: not cluster.nodes[0].find(WORKER), "the chief ends its worker")
        job.until(lambda: job.field("Restarts") == "1", "Slurm queues it again", PATIENCE_S)
        cluster.run("scontrol", "update", f"JobId={job.id}", "ReqNodeList=")
        gang.set_pause(0.0)
        job.start_now()
        job.until_state("COMPLETED", patience_s=PATIENCE_S)
        assert job.field("NodeList") == "n[1,3]"
    finally:
        cluster.nodes[1].start()
        cluster.until_idle()
    assert gang.ends() == undisturbed
    resumed_once(gang, job)


@pytest.mark.minutes
def test_the_node_of_the_chief_and_of_the_batch_script_is_lost(cluster: Cluster, undisturbed: list[str]) -> None:
    gang = Gang(cluster, "head", pause=0.5)
    job = gang.begin("--nodelist=n1,n2")
    until_training(gang, job)
    cluster.nodes[0].power_off()
    try:
        job.until(lambda: not cluster.nodes[1].find(WORKER), "the other ends its worker")
        job.until(lambda: job.field("Restarts") == "1", "Slurm queues it again", PATIENCE_S)
        cluster.run("scontrol", "update", f"JobId={job.id}", "ReqNodeList=")
        gang.set_pause(0.0)
        job.start_now()
        job.until_state("COMPLETED", patience_s=PATIENCE_S)
    finally:
        cluster.nodes[0].start()
        cluster.until_idle()
    assert gang.ends() == undisturbed
    resumed_once(gang, job)


@pytest.mark.minutes
def test_with_another_number_of_nodes_every_example_is_seen_once(cluster: Cluster) -> None:
    seen = Seen(cluster, "seen", count=396, pause=0.1)
    for nodes in (3, 2):
        job = seen.submit(f"--nodes={nodes}")
        job.until(lambda nodes=nodes: len(seen.given(nodes)) > 10 * nodes, f"{nodes} nodes train", PATIENCE_S)
        cluster.run("scancel", job.id)
        end_of(seen, job, "CANCELLED")
    job = seen.submit("--nodes=1")
    end_of(seen, job)
    rows = [row for nodes in (1, 2, 3) for given in seen.given(nodes) for row in given]
    assert sorted(rows) == list(range(396))
    assert all(seen.given(nodes) for nodes in (1, 2, 3))


@pytest.mark.minutes
def test_a_checkpoint_dir_on_each_nodes_own_disk(cluster: Cluster) -> None:
    gang = Gang(cluster, "own-disk")
    gang.conf.write_text(gang.conf.read_text().replace(str(gang.folder), f"{cluster.disk}/own-disk"))
    job = gang.begin()
    end_of(gang, job, "FAILED")
    assert "must be shared by all nodes of the gang" in job.output
    assert job.field("ExitCode") == "70:0"
    assert gang.starts(job) == []


@pytest.mark.minutes
def test_a_batch_script_that_is_killed(cluster: Cluster) -> None:
    gang = Gang(cluster, "script", steps=4000)
    job = gang.begin()
    until_training(gang, job)
    before = gang.newest()
    assert cluster.nodes[0].kill("supervisor.slurm_batch")
    job.until_state("FAILED")
    job.until(lambda: not cluster.leftovers(), "nothing runs on any node")
    assert (job.field("ExitCode"), job.field("Restarts")) == ("0:9", "0")
    assert gang.newest() > before
    assert gang.newest() % 7, "of the flush, and not one of those that come every 7 steps"
