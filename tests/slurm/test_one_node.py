"""One node under a real Slurm, with the batch script as users submit it."""

import pytest

from tests.slurm.cluster import Cluster, SlurmJob
from tests.slurm.jobs import Counting, Training

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(300)]

WORKER, DAEMON = "trainer.py", "supervisor.daemon"


def end_of(training: Training, job: SlurmJob, state: str = "COMPLETED") -> None:
    """It ended so, and nothing is left on any node."""
    job.until_state(state)
    cluster = training.cluster
    job.until(lambda: not cluster.leftovers(), "nothing runs on any node")
    for node in cluster.nodes:
        assert not list(node.own_disk.glob(f"stepkeeper-*-{job.id}"))


def test_a_job_is_done_and_leaves_nothing(cluster: Cluster) -> None:
    training = Training(cluster, "done", STEPS=50)
    job = training.submit()
    end_of(training, job)
    assert (training.count(), training.attempts()) == (50, {1})


def test_a_daemon_that_is_killed_is_started_again_and_adopts_its_worker(cluster: Cluster) -> None:
    training = Training(cluster, "adopt", STEPS=400, STEP_S=0.02)
    job = training.submit()
    job.until(lambda: training.newest() >= 40, "it trains")
    node = next(each for each in cluster.nodes if each.find(DAEMON))
    (worker,) = node.find(WORKER)
    assert node.kill(DAEMON)
    job.until(lambda: node.find(DAEMON), "another daemon runs")
    assert node.find(WORKER) == [worker]
    end_of(training, job)
    assert (training.count(), training.attempts()) == (400, {1})
    assert "a daemon was lost" in job.output


def test_daemon_and_worker_killed_resume_from_the_last_checkpoint(cluster: Cluster) -> None:
    training = Training(cluster, "both", STEPS=200, STEP_S=0.02)
    job = training.submit()
    job.until(lambda: training.newest() >= 40, "it trains")
    node = next(each for each in cluster.nodes if each.find(DAEMON))
    node.kill(DAEMON)
    node.kill(WORKER)
    end_of(training, job)
    assert (training.count(), training.attempts()) == (200, {1, 2})


def test_a_job_that_is_given_up_fails_and_is_not_queued_again(cluster: Cluster) -> None:
    training = Training(cluster, "fail", FAIL="import")
    job = training.submit()
    end_of(training, job, "FAILED")
    assert "No module named 'trian'" in job.output
    assert job.field("ExitCode") == "70:0"


def test_two_nodes_are_refused_to_a_job_that_trains_on_one(cluster: Cluster) -> None:
    training = Training(cluster, "two", STEPS=50)
    job = training.submit("--nodes=2")
    end_of(training, job, "FAILED")
    assert "cannot train on 2 nodes" in job.output
    assert training.newest() == 0


def test_scancel_saves_first_and_the_job_stays_cancelled(cluster: Cluster) -> None:
    training = Training(cluster, "cancel", STEPS=100_000, STEP_S=0.02, EVERY=100_000)
    job = training.submit()
    job.until(lambda: "RUNNING" in job.output, "the job trains")
    cluster.run("scancel", job.id)
    end_of(training, job, "CANCELLED")
    assert training.newest() > 0


@pytest.mark.minutes
def test_preempted_by_a_higher_partition_it_saves_and_resumes(cluster: Cluster) -> None:
    training = Training(cluster, "preempt", STEPS=1500, STEP_S=0.02, EVERY=100_000)
    job = training.submit("--nodelist=n1", "--exclusive")
    job.until(lambda: "RUNNING" in job.output, "the job trains")
    other = cluster.submit("--partition=high", "--nodelist=n1", "--exclusive", "--wrap=sleep 1")
    job.until_state("PENDING", "COMPLETING", patience_s=200)
    saved = training.newest()
    assert 0 < saved < 1500
    training.set_step_s(0.002)
    other.until_state("COMPLETED")
    job.start_now()
    end_of(training, job)
    assert training.count() == 1500
    assert training.attempts() == {1, 1001}


@pytest.mark.minutes
def test_before_the_time_limit_it_saves_and_resumes(cluster: Cluster) -> None:
    training = Training(cluster, "limit", STEPS=4500, STEP_S=0.02, EVERY=500)
    job = training.submit("--signal=USR1@110")
    job.until(lambda: training.newest() > 0, "it trains")
    cluster.run("scontrol", "update", f"JobId={job.id}", "TimeLimit=2")  # the signal comes within a minute
    job.until_state("PENDING", patience_s=200)
    job.until(lambda: job.field("Restarts") == "1", "it was queued again")
    saved = training.newest()
    assert saved < 4500
    assert saved % 500, "of the flush, and not one of those that come every 500 steps"
    training.set_step_s(0.002)
    cluster.run("scontrol", "update", f"JobId={job.id}", "TimeLimit=10")
    job.start_now()
    end_of(training, job)
    assert training.count() == 4500


@pytest.mark.minutes
def test_nothing_trains_on_once_daemon_and_batch_script_were_killed(cluster: Cluster) -> None:
    training = Counting(cluster, "orphan", pause=0.05)
    job = training.submit()
    node = job.until(lambda: next((each for each in cluster.nodes if each.find("count.py")), None), "it trains")
    job.until(lambda: training.newest() > 0, "a checkpoint is there")
    node.kill("supervisor.slurm_batch")
    node.kill("srun")
    node.kill(DAEMON)
    before = training.newest()
    job.until(lambda: not cluster.leftovers(), "the worker leaves by itself", 100)
    assert training.newest() > before


def test_a_batch_script_that_is_killed_alone_ends_the_job_which_has_saved_and_is_not_queued_again(
    cluster: Cluster,
) -> None:
    training = Training(cluster, "script", STEPS=100_000, STEP_S=0.02)
    job = training.submit()
    job.until(lambda: training.newest() >= 40, "it trains")
    node = next(each for each in cluster.nodes if each.find(DAEMON))
    assert node.kill("supervisor.slurm_batch")
    job.until_state("FAILED")
    job.until(lambda: not cluster.leftovers(), "nothing runs on any node")
    assert (job.field("ExitCode"), job.field("Restarts")) == ("0:9", "0")
    assert training.newest() % 20, "of the flush, and not one of those that come every 20 steps"
