"""Trains like `together.py` (FOLDER STEPS), and does something at one moment of a save.

FOLDER/kills: by attempt, JSON of [rank, operation, victim]: right before the first operation of the rank's second save
that the expression matches, the victim is killed. Operations are those of `power_calls`: `fsync ckpt.index`.
FOLDER/limit: a rank, and which of its saves finds that files can't be longer than a kilobyte.
DISK: the checkpoint directory, if it is not FOLDER/ckpt.
IMAGES: a folder; before each operation of a save, on each rank, a copy of the checkpoint directory goes there.
"""

import itertools
import json
import os
import re
import resource
import runpy
import shutil
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

from tests.worker import power_calls

folder = Path(sys.argv[1])
directory = Path(os.environ.get("DISK", folder / "ckpt")).resolve()
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"] if "TF_CONFIG" in os.environ else 0
kills = json.loads((folder / "kills").read_text()) if (folder / "kills").exists() else {}
limited = json.loads((folder / "limit").read_text()) if (folder / "limit").exists() else [None, 0]
images = Path(os.environ["IMAGES"]) if "IMAGES" in os.environ else None
numbers, lock = itertools.count(), threading.Lock()
saves: list[str] = []
LIMIT_BYTES = 1000
PARTIAL = re.compile(r"step-\d+\.a\d+\.partial")


def before(name: str, path: Path) -> None:
    match = PARTIAL.search(str(path))
    if match is None and not (name == "fsync" and path == directory and saves):
        return
    with lock:
        is_removal = name in ("unlink", "rmdir")  # of a checkpoint too old, or what a killed attempt has left
        if match is not None and not is_removal and match[0] not in saves:
            saves.append(match[0])
            if rank == limited[0]:
                most = LIMIT_BYTES if len(saves) == limited[1] else resource.RLIM_INFINITY
                resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
        if images is not None:
            with suppress(shutil.Error, OSError):  # it is renamed meanwhile
                shutil.copytree(directory, images / f"{rank}-{next(numbers):04d}")
        if not saves:
            return
        attempt = saves[-1].removesuffix(".partial").rpartition("a")[2]
        who, what, victim = kills.get(attempt, (None, "", 0))
        if who == rank and len(saves) == 2 and re.fullmatch(what, f"{name} {path.name}"):
            with (folder / "killed").open("a") as file:
                file.write(f"{attempt} {rank} {name} {path.name}\n")
            os.kill(int((folder / f"pid-{victim}").read_text()), signal.SIGKILL)


(folder / f"pid-{rank}").write_text(str(os.getpid()))
power_calls.watch(SimpleNamespace(setattr=setattr), directory, before)
runpy.run_path(str(Path(__file__).with_name("together.py")), run_name="__main__")
