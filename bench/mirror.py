"""Measures the mirror: the way of a checkpoint to the store, what that costs training, and a start on an empty host.

Run with `python -m bench.mirror`. The store is moto's S3 server on this machine: the figures are ratios, no rates of
a provider. Beside the upload of a checkpoint (from its commit on the disk to its commit in the store, as `supervisorctl
checkpoint` says with durable = remote) the same file is put by obstore alone and by `aws s3 cp`; beside a start on an
empty host, one from a local checkpoint. Rounds in turn. Prints a table and writes bench/results/mirror.json.
"""

import argparse
import contextlib
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import obstore
import obstore.store
from rich.console import Console
from rich.table import Table

from bench import harness, peer
from bench.daemon import spread
from bench.harness import ROOT
from tests.mirror.stores import ObjectStore, new_bucket, s3_server
from tests.system.harness import Daemon

JOB = ROOT / "bench" / "mirror_job.py"
STEP_S = 0.02
WATCHED_S = 20.0  # of training, with and without uploads
PATIENCE_S = 120.0
AWS = peer.Peer("awscli", ("awscli==1.40.0",))


def section(folder: Path, megabytes: int, mirror: str = "", interval: str = "1000000 steps") -> str:
    return (
        f"[program:train]\ncommand={sys.executable} {JOB} {megabytes} {STEP_S}\ncheckpoint_dir={folder}/ckpt\n"
        f'checkpoint_interval={interval}\ncheckpoint_keep=2\nstandby=off\nenvironment=STEPS="{folder}/steps"\n{mirror}\n'
    )


@contextlib.contextmanager
def running(folder: Path, text: str) -> Iterator[Daemon]:
    with Daemon(folder, text, environment={"PYTHONPATH": str(ROOT)}, scripts_have=None) as daemon:
        daemon.until_step("train", 1, patience_s=PATIENCE_S)
        yield daemon


def mirrored(store: ObjectStore, name: str) -> str:
    return f"mirror={store.url}/{name}\ndurable=remote\nmirror_keep=2"


def upload(folder: Path, store: ObjectStore, megabytes: int, rounds: int) -> dict[str, list[float]]:
    """Seconds from durable here to durable there, beside plain puts of the same file."""
    seconds: dict[str, list[float]] = {"mirror": [], "obstore.put": [], "aws s3 cp": []}
    client = obstore.store.from_url(store.url, client_options={"allow_http": True})
    with running(folder, section(folder, megabytes, mirrored(store, "run"))) as daemon:
        for number in range(rounds):
            answer = daemon.call("checkpoint", name="train")
            seconds["mirror"].append(answer["upload_s"])
            file = folder / "ckpt" / answer["checkpoint"] / "values"
            os.kill(daemon.status("train")["pid"], signal.SIGSTOP)  # training would take a core from the others alone
            try:
                began = time.monotonic()
                obstore.put(client, f"plain-{number}", file)
                seconds["obstore.put"].append(time.monotonic() - began)
                began = time.monotonic()
                aws = [str(peer.binaries(AWS) / "aws"), "s3", "cp", "--only-show-errors", str(file), f"{store.url}/aws"]
                subprocess.run(aws, check=True)
                seconds["aws s3 cp"].append(time.monotonic() - began)
            finally:
                os.kill(daemon.status("train")["pid"], signal.SIGCONT)
    return seconds


def cost(folder: Path, megabytes: int, mirror: str) -> float:
    """Steps a second while a checkpoint is saved every two seconds."""
    with running(folder, section(folder, megabytes, mirror, "2 seconds")):
        time.sleep(3.0)
        before = len((folder / "steps").read_bytes().splitlines())
        time.sleep(WATCHED_S)
        return (len((folder / "steps").read_bytes().splitlines()) - before) / WATCHED_S


def starts(folder: Path, store: ObjectStore, megabytes: int) -> tuple[float, float]:
    """Seconds from the daemon's start to a new step: with the checkpoint on the disk, and with an empty disk."""
    text = section(folder, megabytes, mirrored(store, f"lost-{time.monotonic_ns()}"))
    seconds = []
    with running(folder, text) as daemon:
        daemon.call("checkpoint", name="train")
        for is_empty in (False, True):
            pid = daemon.status("train")["pid"]
            daemon.die()
            os.kill(pid, signal.SIGKILL)
            if is_empty:
                for name in ("ckpt", "state"):
                    shutil.rmtree(folder / name)
            (folder / "steps").unlink()
            began = time.monotonic()
            daemon.start()
            daemon.until(
                lambda: (folder / "steps").exists() and (folder / "steps").stat().st_size, "a step", PATIENCE_S
            )
            seconds.append(time.monotonic() - began)
            assert daemon.status("train")["job"]["restored"] is not None
    return seconds[0], seconds[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    harness.compiled()
    peer.binaries(AWS)
    with tempfile.TemporaryDirectory() as name, s3_server(Path(name)) as endpoint:
        store, number = new_bucket(endpoint, Path(name) / "s3.log"), iter(range(1000))
        os.environ.update(store.environment)

        def folder() -> Path:
            made = Path(name) / str(next(number))
            made.mkdir()
            return made

        uploads = upload(folder(), store, options.megabytes, options.rounds)
        small = min(options.megabytes, 40)
        rates: dict[str, list[float]] = {"local": [], "mirrored": []}
        lost: list[tuple[float, float]] = []
        for _ in range(options.rounds):
            rates["local"].append(cost(folder(), small, ""))
            rates["mirrored"].append(cost(folder(), small, f"mirror={store.url}/{next(number)}"))
            lost.append(starts(folder(), store, options.megabytes))
    table = Table("figure", "measured", "ratio")
    ours = statistics.median(uploads["mirror"])
    table.add_row(f"{options.megabytes} MB from this disk to the store, s", spread(uploads["mirror"]), "")
    for peer_name in ("obstore.put", "aws s3 cp"):
        ratio = f"{ours / statistics.median(uploads[peer_name]):.2f}"
        table.add_row(f"the same by {peer_name}, s", spread(uploads[peer_name]), ratio)
    kept = statistics.median(rates["mirrored"]) / statistics.median(rates["local"])
    table.add_row(f"steps a second, {small} MB saved every 2 s", spread(rates["local"]), "")
    table.add_row("the same, mirrored", spread(rates["mirrored"]), f"{kept:.3f}")
    here, empty = zip(*lost, strict=True)
    table.add_row("daemon's start to a step, s", spread(list(here)), "")
    slower = f"{statistics.median(empty) / statistics.median(here):.2f}"
    table.add_row("the same on an empty host, s", spread(list(empty)), slower)
    Console(width=110).print(table)
    harness.write("mirror", {"uploads_s": uploads, "steps_per_s": rates, "starts_s": lost})


if __name__ == "__main__":
    main()
