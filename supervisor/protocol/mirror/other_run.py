"""May the checkpoints of a store and those of a folder be of different trainings?

A folder may hold checkpoints of a job that had no mirror when it saved them, or another one. If the store then has some
too, nothing says that they are of the same training, unless it has one of the folder's. To go on from newer ones would
give up what the job has trained; to go on from the folder's would take the run over from whoever trains it, and delete
its checkpoints in time. So nothing is fetched, and no epoch begun (`OtherRun`), until a person has chosen.
"""

from collections.abc import Callable, Collection
from pathlib import Path

from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints.manifest import MAX_BYTES
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.mirror.folder_epochs import of_no_run
from supervisor.protocol.mirror.keys import Epoch, RemoteCheckpoint
from supervisor.protocol.mirror.remote_run import RemoteRun
from supervisor.protocol.mirror.store import StoreError


class OtherRun(StoreError):
    """The store and the folder have checkpoints, and nothing says that both are of one training.

    `here`, `there`: the newest checkpoint of each. `is_here_too`: the folder also has one of the step of `there`.
    """

    def __init__(self, here: CheckpointName, there: CheckpointName, is_here_too: bool) -> None:
        super().__init__(
            f"the mirror's newest checkpoint is of step {there.step} ({there}), and nothing says that it is of the "
            f"same training as step {here.step} ({here}), which was saved before there was this mirror, and is not in "
            f"it"
        )
        self.here = here
        self.there = there
        self.is_here_too = is_here_too


def find_other_run(
    run: RemoteRun, folder: Path, on_line: Callable[[], Collection[RemoteCheckpoint]]
) -> OtherRun | None:
    """Whether the checkpoints on the line may be of another training than those of the folder; how.

    `on_line` lists them, and is asked only for a folder that was not used with this run. Raises StoreError, OSError.
    """
    here = of_no_run(folder, run.store.url)
    if not here:
        return None
    line = on_line()
    there = max((remote.name for remote in line), default=None)
    if there is None or any(_is_same(run, folder, remote) for remote in line):
        return None
    return OtherRun(max(here), there, any(name.step == there.step for name in here))


def _is_same(run: RemoteRun, folder: Path, remote: RemoteCheckpoint) -> bool:
    """Whether the folder has this very checkpoint."""
    try:
        content = durable.read_file(folder / str(remote.name) / layout.MANIFEST, MAX_BYTES + 1)
    except FileNotFoundError:
        return False
    return run.store.read(remote.manifest, MAX_BYTES) == content


def refuse_empty_list(run: RemoteRun, latest: Epoch) -> None:
    """Raises StoreError if a run of which no checkpoint is listed has one, or had."""
    if latest.parent is not None:
        why = f"its last host went on from {latest.parent}"
    elif run.has_committed(latest.number):
        why = f"its last host has uploaded some (epoch {latest.number})"
    else:
        return
    raise StoreError(
        f"the store lists no checkpoint of this run, although {why}; wait until it lists all again, or begin anew on "
        f"purpose (start --from-scratch)"
    )
