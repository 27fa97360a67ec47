"""Whether checkpoints are missing that were committed: what is known is compared with what is found. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownCheckpoint:
    """The last checkpoint that the job committed or restored in its directory. `mount`: the file system, in words."""

    directory: str
    name: str
    step: int
    mount: str | None = None


@dataclass(frozen=True, slots=True)
class Loss:
    """Checkpoints that are gone, in words. `waits`: whether nothing may train before the storage is back or a person
    has said that it is given up.
    """

    text: str
    waits: bool


def find_loss(
    refusal: str,
    known: KnownCheckpoint | None,
    directory: str,
    found_step: int | None,
    mount: str | None,
    remedy: str,
) -> Loss | None:
    """What is missing from the directory; None if nothing is.

    `found_step`: the highest step of any checkpoint in it, quarantined ones included; None if there is none. `mount`:
    the file system that the directory is on now; None if that is not known. `refusal`, `remedy`: how the text begins
    and ends if nothing may train.
    """
    if known is None or known.directory != directory or (found_step is not None and found_step >= known.step):
        return None
    was_on = f" ({known.mount})" if known.mount is not None else ""
    committed = f"step {known.step} ({known.name}) was committed in {known.directory}{was_on}"
    moved = known.mount is not None and mount is not None and known.mount != mount
    now = f"the folder is now on {mount}" if moved else "it is gone"
    if found_step is None:
        what = f"{now} and holds no checkpoint" if moved else "no checkpoint is there now"
        return Loss(f"{refusal}: {committed}, and {what}; {remedy}", waits=True)
    if moved:
        text = f"{refusal}: {committed}, but {now}, and its newest checkpoint is of step {found_step}; {remedy}"
        return Loss(text, waits=True)
    return Loss(f"{committed} and {now}; the newest one that is left is of step {found_step}", waits=False)
