"""A report as people read it."""

from collections.abc import Iterator

from supervisor.protocol.plurals import counted, counted_bytes
from supervisor.protocol.proof import Difference, Likely, ProofKill, ProofReport, Verdict
from supervisor.prove.comparison.steps import NUMBER_OF_STEPS

SHOWN = 12  # differences


def report_lines(report: ProofReport) -> Iterator[str]:
    """The verdict in the first line, then what explains it."""
    if report.verdict is Verdict.NOT_PROVABLE:
        yield f"not provable: {report.reason}"
        return
    size = f"{counted_bytes(report.state_bytes)} of state"
    if report.verdict is Verdict.EXACT:
        ends = counted(report.epoch_ends, "epoch's end", "epochs' ends")
        done = f"{counted(len(report.kills), 'kill')}, {counted(report.steps, 'step')}, {ends}, {size}"
        yield f"exact: {done}, all bits equal"
    else:
        first = report.differences[0]
        other = "in another undisturbed run" if report.likely is Likely.NOT_DETERMINISTIC else "killed"
        yield f"different: {first.name}{_at(first)}: {first.undisturbed} undisturbed, {first.killed} {other}"
    yield from (f"  killed {_kill_text(kill)}" for kill in report.kills)
    if report.verdict is Verdict.DIFFERENT:
        for difference in report.differences[1:SHOWN]:
            yield f"  {difference.name}{_at(difference)}: {difference.undisturbed} | {difference.killed}"
        if len(report.differences) > SHOWN:
            yield f"  and {len(report.differences) - SHOWN} more"
        yield f"likely: {report.likely}: {report.reason}"
        if report.named:
            yield f"named by the checks: {'; '.join(report.named)}"
        yield f"write: {report.remedy}"
    elif report.named:
        yield f"named by the checks, without effect here: {'; '.join(report.named)}"
    yield f"not varied: {'; '.join(report.not_varied)}"
    yield f"took {report.took_s:.0f} s"


def _at(difference: Difference) -> str:
    is_of_all = difference.step is None or difference.name == NUMBER_OF_STEPS
    return "" if is_of_all else f" at step {difference.step}"


def _kill_text(kill: ProofKill) -> str:
    begun = "nothing" if not kill.resumed_from else f"step {kill.resumed_from}"
    damaged = ", newest checkpoint damaged" if kill.damaged else ""
    return f"{kill.place} at step {kill.step}{damaged}: went on from {begun}"
