"""Another program than faulty.py, which can't go on from what that one wrote."""

import os

os.environ["FAULT"] = "none"

from tests.children import faulty
from worker.files import FilesRun


class Other(faulty.State):
    """Of another kind."""


if __name__ == "__main__":
    faulty.state = Other()
    faulty.run = FilesRun(faulty.state, total_steps=faulty.STEPS)
    faulty.main()
