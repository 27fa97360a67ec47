"""A gang whose nodes have folders of their own, and a mirror: when a save is a checkpoint, and what all restore.

Each worker writes its files into a folder that is no checkpoint (`….part`), on its own node. The chief's daemon has all
nodes upload theirs and commits in the mirror; the chief's worker waits for that, so here too a save has ended once its
checkpoint exists. At a start each node's daemon has fetched what the chief's daemon selected, and the workers make sure
of that before they read it.
"""

import contextlib
import platform
from pathlib import Path
from typing import NoReturn

from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints import removal
from supervisor.protocol.checkpoints.manifest import MAX_BYTES, Manifest, digest_of
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.messages import PartsWritten
from worker.data.collectives import Gang
from worker.process.attempt import Attempt
from worker.process.daemon_process import wait_for_end
from worker.saving.commit import NotPublished, save_error_text

LOOK_S = 1.0  # between looks whether the daemon is there


def has_own_folders(attempt: Attempt) -> bool:
    """Whether this worker is one of a gang whose nodes have folders of their own."""
    return not attempt.launch.checkpoint_dir_shared and attempt.launch.generation is not None


def publish(attempt: Attempt, manifest: Manifest, part: Path) -> None:
    """Returns once the checkpoint exists in the mirror. `part`: where the chief's files of it lie, with the manifest.

    Raises NotPublished, also once the daemon is gone: then nobody commits it.
    """
    assert attempt.channel is not None
    daemon = attempt.launch.leaves_with
    is_divided = any(not (part / file.name).exists() for file in manifest.files)
    name = str(manifest.name)
    attempt.channel.send_message(PartsWritten(attempt.number, manifest.step, name, is_divided))
    while (answer := attempt.channel.wait_for_mirrored(name, LOOK_S)) is None:
        if daemon is not None and wait_for_end(daemon, 0):
            raise NotPublished(save_error_text(manifest.name, "the daemon, which has it uploaded, is gone"))
    if answer.error is not None:
        raise NotPublished(save_error_text(manifest.name, answer.error))


def delete_old_parts(directory: Path, newest: CheckpointName) -> None:
    """Deletes this node's files of checkpoints but for the newest that exists; what can't be deleted now stays."""
    with contextlib.suppress(OSError):
        removal.delete_parts(directory, newest)


def proof_of(restore: Path | None) -> str:
    """What says which checkpoint a worker restores; empty at step 0. Raises OSError."""
    if restore is None:
        return ""
    return f"{restore.name} {digest_of(durable.read_file(restore / layout.MANIFEST, MAX_BYTES + 1))}"


def require_same(restore: Path | None, proof: str, gang: Gang, attempt: Attempt) -> None:
    """Ends all workers unless each restores the checkpoint of the chief. `proof`: the chief's `proof_of`."""
    mine = proof_of(restore)
    differ = gang.sum([int(mine != proof)])[0]
    if differ:
        here = f"this one, on {platform.node()}, has {mine.partition(' ')[0] or 'none'}"
        attempt.exit_with_error(
            WorkerExit.DIRECTORY_UNUSABLE,
            f"cannot train: {differ} of {gang.size} workers would restore another checkpoint than the chief's "
            f"{proof.partition(' ')[0] or 'none'} ({here}); look at what has changed checkpoint_dir there, and start "
            f"the job again",
        )


def refuse(attempt: Attempt, text: str) -> NoReturn:
    """Ends this worker: what it does can't be done where nodes have folders of their own."""
    attempt.exit_with_error(
        WorkerExit.BAD_LAUNCH,
        f"cannot train with checkpoint_dir_shared = false: {text}, or delete that line and use a folder that all nodes "
        f"see",
    )
