"""The commands `prove`, `prove_cancel` and `proof`: that a job's training, killed at any instant, ends bit for bit the
same."""

import time
from dataclasses import dataclass, fields
from typing import Annotated

from supervisor.control.base.context import CommandContext, ProgramName, find_job
from supervisor.control.base.errors import Code, CommandError
from supervisor.protocol.plurals import counted
from supervisor.protocol.proof import Difference, Likely, ProofKill, ProofReport, Verdict
from supervisor.runner.fleet.proofs import ProofRefused, ProofRun, Proofs, ProofWish

SHOWN_DIFFERENCES = 10  # the first ones say what there is to say
MAX_REASON = 200  # characters of a line


@dataclass(frozen=True, slots=True)
class ProveRequest:
    """`steps`, `epochs`: how long each run trains; `kills`: how often the second one is killed; null: as the prover
    chooses. `anyway`: also while the job runs, or while none of its GPUs is free."""

    name: str
    steps: Annotated[int | None, {"minimum": 1, "maximum": 10_000_000}] = None
    epochs: Annotated[float | None, {"minimum": 1, "maximum": 1_000_000}] = None
    kills: Annotated[int | None, {"minimum": 1, "maximum": 100}] = None
    anyway: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofStatus:
    """The newest proof of a job that came to a verdict; the fields of the report are those of `ProofReport`.

    `text`: in words. `has_changed`: whether the command, or the files that it ran, have changed since; null if that is
    not known.
    """

    text: str
    verdict: Verdict
    wall_at: float
    took_s: float
    steps: int
    epoch_ends: int
    state_bytes: int
    kills: tuple[ProofKill, ...]
    reason: str
    differences: tuple[Difference, ...]
    likely: Likely | None
    named: tuple[str, ...]
    remedy: str
    not_varied: tuple[str, ...]
    has_changed: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofAnswer:
    """The last proof of a job since the daemon's start. `number`: grows with each proof of this daemon.

    `doing`: what is done now; `done`: the share that is; `step`, `of`: of the present run; null: not known. Once it
    `is_over`: `verdict`, `report`, and `text` for people; or `failure`: why it came to nothing.
    """

    name: str
    number: int
    is_over: bool
    running_s: float | None
    doing: str
    done: float | None
    step: int | None
    of: int | None
    verdict: Verdict | None
    text: str
    failure: str | None
    report: ProofStatus | None


@dataclass(frozen=True, slots=True)
class ProvingNow:
    """How far a proof is that is under way; as in `ProofAnswer`."""

    doing: str
    done: float | None


async def prove(context: CommandContext, request: ProveRequest) -> ProofAnswer:
    """Begins to prove that a job's training ends bit for bit the same however often it is killed; returns at once.

    The job's own command trains in a scratch folder, undisturbed and with kills. `proof` says how far that is.
    """
    runner, job = find_job(context, request.name)
    if request.steps is not None and request.epochs is not None:
        raise CommandError(Code.BAD_ARGUMENTS, "steps and epochs say two different lengths; give one of them")
    wish = ProofWish(request.steps, request.epochs, request.kills, request.anyway)
    try:
        return _answer(context, await context.proofs.begin(runner, job, wish))
    except ProofRefused as error:
        raise CommandError(Code.NOT_PROVEN, str(error)) from error


async def prove_cancel(context: CommandContext, request: ProgramName) -> ProofAnswer:
    """Ends the proof of a job; returns when nothing of it is left."""
    find_job(context, request.name)
    run = context.proofs.last_run(request.name)
    if run is None or not await context.proofs.cancel(request.name):
        raise CommandError(Code.NOT_RUNNING, f"{request.name} is not being proven")
    return _answer(context, run)


async def proof(context: CommandContext, request: ProgramName) -> ProofAnswer:
    """Gives the last proof of a job since the daemon's start: how far it is, or what it came to."""
    find_job(context, request.name)
    run = context.proofs.last_run(request.name)
    if run is None:
        raise CommandError(Code.NOT_RUNNING, f"{request.name} was not proven since this daemon's start")
    return _answer(context, run)


def _answer(context: CommandContext, run: ProofRun) -> ProofAnswer:
    report = None if run.proven is None else run.proven.report
    return ProofAnswer(
        name=run.name,
        number=run.number,
        is_over=run.is_over,
        running_s=None if run.is_over else max(0.0, time.time() - run.began_wall_at),
        doing=run.progress.doing,
        done=run.progress.done,
        step=run.progress.step,
        of=run.progress.of,
        verdict=None if report is None else report.verdict,
        text="" if run.proven is None else run.proven.text,
        failure=run.failure,
        report=None if report is None else _status_of(report, context.proofs.has_changed(run.name)),
    )


def proof_status(proofs: Proofs, name: str) -> ProofStatus | None:
    """What `status` says of a job's newest proof; None if it was never proven."""
    report = proofs.newest(name)
    return None if report is None else _status_of(report, proofs.has_changed(name))


def proving_now(proofs: Proofs, name: str) -> ProvingNow | None:
    """What `status` says of a proof that is under way; None if the job is not being proven."""
    run = proofs.current
    return ProvingNow(run.progress.doing, run.progress.done) if run is not None and run.name == name else None


def _status_of(report: ProofReport, has_changed: bool | None) -> ProofStatus:
    same = {field.name: getattr(report, field.name) for field in fields(ProofStatus) if hasattr(report, field.name)}
    shown = same | {"differences": report.differences[:SHOWN_DIFFERENCES]}
    return ProofStatus(text=describe_proof(report, time.time(), has_changed), has_changed=has_changed, **shown)


def describe_proof(report: ProofReport, wall_now: float, has_changed: bool | None = None) -> str:
    """The newest proof of a job in a line, as it stands at `wall_now` (Unix seconds)."""
    since = "; the script has changed since" if has_changed else ""
    ago = _ago(wall_now - report.wall_at)
    match report.verdict:
        case Verdict.EXACT:
            kills, steps = counted(len(report.kills), "kill"), counted(report.steps, "step")
            return f"proven exact {ago} ({kills}, {steps}){since}"
        case Verdict.DIFFERENT:
            return f"proof {ago} found a difference: {_first_difference(report)}{since}"
        case Verdict.NOT_PROVABLE:
            return f"not provable, as found {ago}: {_one_line(report.reason)}{since}"


def difference_found(proofs: Proofs, name: str) -> str | None:
    """What has to be said of a job whose newest proof found a difference; None of any other."""
    report = proofs.newest(name)
    if report is None or report.verdict is not Verdict.DIFFERENT:
        return None
    return f"its proof found a difference: {_first_difference(report)}"


def _first_difference(report: ProofReport) -> str:
    if not report.differences:
        return _one_line(report.reason) or "no details are known"
    first = report.differences[0]
    return _one_line(first.name) + ("" if first.step is None else f" at step {first.step}")


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_REASON else f"{line[: MAX_REASON - 1]}…"


def _ago(span_s: float) -> str:
    """A length of time in its largest unit: minutes at least, as what says it is compared each second."""
    for unit_s, unit in ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute")):
        if span_s >= unit_s:
            return f"{counted(int(span_s // unit_s), unit)} ago"
    return "just now"
