"""Programs that differ from faulty.py: MISFIT=all can't go on from what that one wrote, MISFIT=NAME not from that."""

import os
from pathlib import Path

import faulty  # beside this file, which is where Python looks first

from worker.files import FilesRun, Unfit

MISFIT = os.environ["MISFIT"]


class Other(faulty.State):
    """Of another kind, and so is what it writes."""

    def read(self, folder: Path) -> None:
        if folder.name == MISFIT:
            raise Unfit("its layers are others")
        super().read(folder)


if __name__ == "__main__":
    faulty.state = Other()
    faulty.run = FilesRun(faulty.state, total_steps=faulty.STEPS)
    faulty.main()
