"""A file to which training only appends, such as a table of losses: a restart leaves no line twice and none out."""

import json
import os
import zlib
from pathlib import Path
from typing import Any, TextIO

from supervisor.protocol.allocation import CLUSTER
from supervisor.protocol.plurals import counted_bytes
from supervisor.protocol.wire import launch
from worker.process.startup import attempt_or_standby


class LogFile:
    """A text file that a loop appends to, kept in `run.state`:

        log = worker.LogFile("loss.csv")
        with worker.Run(checkpoint, state={"log": log}) as run:
            for batch in run.batches(data):
                ...
                log.write(f"{run.step},{float(loss)}\\n")  # or csv.writer(log), or print(..., file=log)
                run.step_done()

    A checkpoint has the file's length, and a restart cuts the file to it before it writes on. What is written before
    the `with`, such as the names of columns, is in the file once. Training that begins at step 0 begins an empty file:
    one that is there is kept as `loss.csv.1`, or with the next number that is free.
    Lines that a lost host had not yet written to its disk are gone; that is said. Of processes that train together the
    chief alone writes. A proof of exactness leaves the file alone, and writes into its own folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """`path`: relative to the present working directory. Its folder has to be there. Opens nothing."""
        self._path = _own_path(Path(path).absolute())
        self._file: TextIO | None = None
        self._length: int | None = None  # in bytes, of what belongs to this training; None: nothing yet
        self._head: list[str] = []  # written before the run has begun: a restored file has it
        self.written = 0  # characters, by this process

    def write(self, text: str) -> int:
        """Appends a text; returns its number of characters. Raises OSError."""
        if _is_chief():
            if attempt_or_standby().has_begun_run:
                self._opened().write(text)
            else:
                self._head.append(text)
            self.written += len(text)
        return len(text)

    def flush(self) -> None:
        """Has the file show all that was written. Each checkpoint does that too."""
        if self._file is not None:
            self._file.flush()

    def state_dict(self) -> dict[str, Any]:
        """The file's length in bytes."""
        if self._file is not None:
            self._file.flush()
            self._length = os.fstat(self._file.fileno()).st_size
        return {"length": self._length}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on behind that length: what is there now behind it goes with the next write."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._length = state["length"]

    def _opened(self) -> TextIO:
        if self._file is None:
            is_begun = self._length is not None
            self._file = self._open()
            self._file.write("" if is_begun else "".join(self._head))
        return self._file

    def _open(self) -> TextIO:
        size = self._path.stat().st_size if self._path.exists() else 0
        if self._length is None:
            if size > 0:
                self._path.rename(_free_name(self._path))
            return self._path.open("w", encoding="utf-8", newline="")
        if size < self._length:
            attempt_or_standby().reporter.show_message(
                f"{self._path} has lost its last {counted_bytes(self._length - size)}: it has {size} bytes, and had "
                f"{self._length} when the checkpoint was written"
            )
        file = self._path.open("a", encoding="utf-8", newline="")
        file.truncate(min(size, self._length))
        return file


def _own_path(path: Path) -> Path:
    """Where it is written: in a proof, which trains beside the user's files, in its folder."""
    folder = launch.proof_folder(os.environ)
    return path if folder is None else folder / f"log-{zlib.crc32(os.fsencode(path)):08x}-{path.name}"


def _is_chief() -> bool:
    described = json.loads(os.environ.get(CLUSTER, "{}"))
    task, chief = described.get("task"), "chief" if "chief" in described.get("cluster", ()) else "worker"
    return task is None or (task["type"], int(task["index"])) == (chief, 0)


def _free_name(path: Path) -> Path:
    number = 1
    while (other := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return other
