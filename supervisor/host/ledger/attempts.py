"""Records of attempts in the ledger: those without an end, and the history of a program."""

from dataclasses import dataclass

from supervisor.host.ledger.writer import Select


@dataclass(frozen=True, slots=True)
class OpenAttempt:
    """An attempt whose end was not recorded: the daemon died, or, if not `of_this_boot`, the host did.

    `started_at`: Unix time.
    """

    program: str
    attempt: int
    pid: int
    start_time: int
    of_this_boot: bool = True
    started_at: float | None = None


@dataclass(frozen=True, slots=True)
class LastEnd:
    """How a program's last attempt ended. `cause`, `ended_at` (Unix time): None if no end was recorded.

    `to_step`: the last step known of it.
    """

    cause: str | None
    ended_at: float | None
    to_step: int | None
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One attempt. `from_step`: where it began, None if it never got so far; `to_step`: the last step known of it.

    `restored`: name of the checkpoint it began from, None at step 0. `lost_steps`: how far behind `to_step` the next
    attempt that trained began, None if there was none yet. `refused`: (name, reason) of checkpoints found damaged at
    its start. `checkpoints`: how many it committed. `ran_s`: how long it ran, whatever the clock was set to meanwhile.
    `changed`: what the bits depend on and is another than when the job trained last, in words. `older_because`: why it
    began from an older checkpoint than the newest one, and `older_text` in words; None if it did not.
    """

    attempt: int
    started_wall_at: float
    ended_wall_at: float | None
    restored: str | None
    from_step: int | None
    to_step: int | None
    cause: str | None
    text: str | None
    exit_code: int | None
    signal: int | None
    lost_steps: int | None
    refused: tuple[tuple[str, str], ...]
    checkpoints: int
    changed: tuple[str, ...] = ()
    ran_s: float | None = None
    older_because: str | None = None
    older_text: str | None = None


def attempt_history(select: Select, program: str, limit: int) -> list[AttemptRecord]:
    """The last `limit` attempts of a program, newest last. Raises LedgerError."""
    rows = select(
        "SELECT attempt, started_at AS started_wall_at, ended_at AS ended_wall_at,"
        " coalesce(ran_s, max(0.0, ended_at - started_at)) AS ran_s, restored,"
        " from_step, to_step, cause, text, exit_code, signal, changed, older_because, older_text,"
        " (SELECT count(*) FROM checkpoints WHERE program = ?1 AND attempt = a.attempt)"
        " + checkpoints_pruned AS checkpoints"
        " FROM attempts AS a WHERE program = ?1 ORDER BY attempt DESC LIMIT ?2",
        program,
        limit,
    )
    oldest = rows[-1]["attempt"] if rows else 0
    refused: dict[int, list[tuple[str, str]]] = {}
    for row in select(
        "SELECT attempt, name, reason FROM refusals WHERE program = ? AND attempt >= ? ORDER BY name DESC",
        program,
        oldest,
    ):
        refused.setdefault(row["attempt"], []).append((row["name"], row["reason"]))
    records: list[AttemptRecord] = []
    resumed_at: int | None = None  # where the next later attempt that trained began
    for row in rows:
        lost = None if resumed_at is None or row["to_step"] is None else max(0, row["to_step"] - resumed_at)
        refusals = tuple(refused.get(row["attempt"], ()))
        changed = tuple((row["changed"] or "").splitlines())
        records.append(AttemptRecord(**{**dict(row), "changed": changed}, lost_steps=lost, refused=refusals))
        resumed_at = resumed_at if row["from_step"] is None else row["from_step"]
    return records[::-1]
