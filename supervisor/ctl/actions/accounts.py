"""Action about where time went: goodput."""

from typing import Any

from supervisor.ctl import render
from supervisor.ctl.actions.base import Arguments, one_name
from supervisor.ctl.actions.listing import call_for_program
from supervisor.ctl.terminal import ExitStatus, Terminal
from supervisor.protocol.plurals import counted

MEANS = {
    "training": "steps never done before",
    "saving": "training stood still for a checkpoint",
    "restoring": "state put back in place",
    "starting": "spawn, import, the checkpoint's proof",
    "tracing": "from the restored state to the end of the first step",
    "replaying": "steps done a second time",
    "data": "training waited for its input",
    "hung": "silence that was a hang",
    "down": "no process, though wanted",
}
"""What a category is; `stopped` is shown below the others, as it counts for nothing."""


def goodput(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Where a job's time went."""
    answer = call_for_program(terminal, "goodput", one_name("goodput", arguments))
    if answer is None:
        return ExitStatus.ERROR
    if terminal.as_json:
        terminal.print_json(answer)
        return ExitStatus.OK
    for line in _lines(answer):
        terminal.print_line(line)
    return ExitStatus.OK


def _lines(answer: dict[str, Any]) -> list[str]:
    spent_s, wanted_s = answer["spent_s"], answer["wanted_s"]
    rows = [_row(category, spent_s.get(category, 0.0), wanted_s, means) for category, means in MEANS.items()]
    causes = ", ".join(f"{count} {cause}" for cause, count in answer["causes"].items())
    return [
        *render.table(("CATEGORY", "SECONDS", "SHARE", "MEANS"), rows),
        "",
        f"goodput {_share(answer['goodput'])} of {render.span(wanted_s)} wanted"
        f" (stopped besides: {render.span(spent_s.get('stopped', 0.0))})",
        f"{counted(answer['attempts'], 'attempt')} since {render.moment(answer['since_wall_at'])}",
        f"interrupted by: {causes or 'nothing'}; steps lost and done again: {answer['lost_steps']}",
    ]


def _row(category: str, span_s: float, wanted_s: float, means: str) -> tuple[str, ...]:
    return category, f"{span_s:.1f}", _share(span_s / wanted_s if wanted_s else None), means


def _share(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
