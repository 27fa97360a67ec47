"""Actions about what happened to a program: history, timeline, goodput."""

from typing import Any

from supervisor.ctl import render
from supervisor.ctl.actions.base import Arguments, UsageError, call_for_program, one_name
from supervisor.ctl.terminal import ExitStatus, Terminal
from supervisor.protocol.numbers import whole_number
from supervisor.protocol.plurals import counted

DEFAULT_COUNT = 20
MOST_ATTEMPTS = 10_000
MOST_EVENTS = 200  # as many as the daemon remembers of a program

HEAD = ("ATTEMPT", "STARTED", "LASTED", "FROM", "TO", "SAVED", "LOST", "ENDED")
"""Of the attempts; remarks stand in the last column."""

CATEGORIES = {
    "training": "new steps",
    "saving": "training paused for a checkpoint",
    "restoring": "loading the checkpoint into memory",
    "starting": "starting the process, importing, verifying the checkpoint",
    "tracing": "from the restored state to the end of the first step",
    "replaying": "steps repeated after a restart, or to compare",
    "data": "training waited for input data",
    "hung": "no progress, until the hang was detected",
    "down": "no process, though the job should have been running",
}
"""What each category of time means. `stopped` is shown separately, as nobody wanted the job to run then."""


def history(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Lists a program's last attempts, oldest first."""
    limit, name = _count_and_name("history", arguments, MOST_ATTEMPTS)
    answer = call_for_program(terminal, "history", name, limit=limit)
    if answer is None:
        return ExitStatus.ERROR
    rows = [row for attempt in answer["attempts"] for row in _attempt_rows(attempt)]
    terminal.print_result(answer, render.table(HEAD, rows) if rows else ["no attempts yet"])
    return ExitStatus.OK


def _attempt_rows(attempt: dict[str, Any]) -> list[tuple[str, ...]]:
    """A row for the attempt; above it, one for each checkpoint that was refused at its start, one if it began from an
    older checkpoint than the newest, and one for each condition that had changed since the checkpoint it began from;
    below it, where the reason of its end is from, who has to act, and what followed."""
    remarks = [f"refused {name}: {reason}" for name, reason in attempt["refused"]]
    remarks += [f"{attempt['older_because']}: {attempt['older_text']}"] if attempt["older_because"] is not None else []
    remarks += [f"conditions changed: {text}" for text in attempt["changed"]]
    row = (
        str(attempt["attempt"]),
        render.moment(attempt["started_wall_at"]),
        render.span(attempt["ran_s"] or 0.0) if attempt["ended_wall_at"] is not None else "running",
        "-" if attempt["from_step"] is None else str(attempt["from_step"]),
        "-" if attempt["to_step"] is None else str(attempt["to_step"]),
        str(attempt["checkpoints"]),
        "-" if attempt["lost_steps"] is None else str(attempt["lost_steps"]),
        attempt["text"] or attempt["cause"] or "",
    )
    diagnosis = attempt.get("diagnosis")  # a daemon of an earlier version has none
    after = [] if diagnosis is None or not diagnosis["what"] else [_consequence(diagnosis)]
    before_remark = ("",) * (len(HEAD) - 1)
    return [*((*before_remark, remark) for remark in remarks), row, *((*before_remark, remark) for remark in after)]


def _consequence(diagnosis: dict[str, Any]) -> str:
    is_theirs = diagnosis["who"] != "nobody"
    remedy = f"to be done by {diagnosis['who']}: {diagnosis['advice']}" if is_theirs else diagnosis["advice"]
    return "; ".join(filter(None, [f"from {diagnosis['source']}", remedy, diagnosis["follows"]]))


def timeline(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Lists a program's last events with what the daemon did then, oldest first."""
    limit, name = _count_and_name("timeline", arguments, MOST_EVENTS)
    answer = call_for_program(terminal, "timeline", name, limit=limit)
    if answer is None:
        return ExitStatus.ERROR
    rows = [_event_row(scene) for scene in answer["scenes"]]
    head = ("WHEN", "ATTEMPT", "STATE", "EVENT AND WHAT FOLLOWED")
    terminal.print_result(
        answer, render.table(head, rows) if rows else ["nothing has happened since the daemon started"]
    )
    return ExitStatus.OK


def _event_row(scene: dict[str, Any]) -> tuple[str, ...]:
    change = scene["state"] if scene["was"] == scene["state"] else f"{scene['was']} -> {scene['state']}"
    text = "; ".join([scene["event"], *scene["effects"]])
    reason = f" [{scene['reason']}]" if scene["reason"] else ""
    return render.moment(scene["wall_at"]), str(scene["attempt"]), change, text + reason


def _count_and_name(action: str, arguments: Arguments, most: int) -> tuple[int, str]:
    """The COUNT of an argument `-COUNT`, and the one program that is named. Raises UsageError."""
    count = DEFAULT_COUNT
    for option in (argument for argument in arguments if argument.startswith("-")):
        named = whole_number(option[1:], 1, most)
        if named is None:
            raise UsageError(f"Error: bad argument {option}")
        count = named
    return count, one_name(action, [argument for argument in arguments if not argument.startswith("-")])


def goodput(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Shows where a job's time went."""
    answer = call_for_program(terminal, "goodput", one_name("goodput", arguments))
    if answer is None:
        return ExitStatus.ERROR
    terminal.print_result(answer, _goodput_lines(answer))
    return ExitStatus.OK


def _goodput_lines(answer: dict[str, Any]) -> list[str]:
    spent_s, wanted_s = answer["spent_s"], answer["wanted_s"]
    rows = []
    for category, meaning in CATEGORIES.items():
        seconds = spent_s.get(category, 0.0)
        rows.append((category, f"{seconds:.1f}", _percent(seconds / wanted_s if wanted_s else None), meaning))
    causes = ", ".join(f"{cause} ({count})" for cause, count in answer["causes"].items())
    since = f" since {render.moment(answer['since_wall_at'])}" if answer["attempts"] else ""
    return [
        *render.table(("CATEGORY", "SECONDS", "SHARE", "MEANING"), rows),
        "",
        f"goodput: {_percent(answer['goodput'])} of the {render.span(wanted_s)} in which the job should have run",
        f"stopped on request, not counted: {render.span(spent_s.get('stopped', 0.0))}",
        f"{counted(answer['attempts'], 'attempt')}{since}",
        f"interrupted by: {causes or 'nothing'}",
        f"steps lost and repeated: {answer['lost_steps']}",
    ]


def series(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Shows a job's metrics over its steps; with a metric's name, all that is recorded of it."""
    if len(arguments) not in (1, 2):
        raise UsageError("Error: series requires a job's name, and takes a metric's")
    wanted = {"metric": arguments[1]} if len(arguments) > 1 else {}
    answer = call_for_program(terminal, "series", arguments[0], **wanted)
    if answer is None:
        return ExitStatus.ERROR
    metrics = {metric["name"]: metric["buckets"] for metric in answer["metrics"]}
    if len(arguments) == 1:
        rows = [_metric_row(metric) for metric in answer["metrics"]]
        head = ("METRIC", "FROM STEP", "TO STEP", "FIRST", "LAST", "LEAST", "GREATEST")
        terminal.print_result(answer, render.table(head, rows) if rows else ["nothing is recorded yet"])
        return ExitStatus.OK
    if arguments[1] not in metrics:
        recorded = ", ".join(metrics) or "none"
        terminal.print_line(f"{arguments[0]}: ERROR (there is no metric {arguments[1]}; recorded: {recorded})")
        return ExitStatus.ERROR
    keys = ("attempt", "first_step", "step", "wall_at", "count", "mean", "least", "greatest")
    lines = [",".join(str(metric[key]) for key in keys) for metric in metrics[arguments[1]]]
    terminal.print_result(answer, [",".join(keys), *lines])
    return ExitStatus.OK


def _metric_row(metric: dict[str, Any]) -> tuple[str, ...]:
    values = (f"{metric[key]:.6g}" for key in ("first", "last", "least", "greatest"))
    return metric["name"], str(metric["first_step"]), str(metric["step"]), *values


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
