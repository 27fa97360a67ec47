"""Every action of supervisorctl by its name, and how one is run."""

from collections.abc import Mapping
from dataclasses import replace

from supervisor.ctl.actions import (
    accounts,
    daemon,
    events,
    foreground,
    listing,
    logs,
    notices,
    opening,
    start_stop,
    story,
    using,
)
from supervisor.ctl.actions.base import Action, Arguments, UsageError
from supervisor.ctl.client import LoginNeeded, Refusal, Unreachable
from supervisor.ctl.terminal import ExitStatus, Terminal

JSON = "--json"
HELP = ("-h", "-?", "--help")


def show_help(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """The list of actions, or how one is used."""
    if len(arguments) > 1:
        raise UsageError("Error: help accepts one action at most")
    if not arguments:
        terminal.print_line("default commands (type help <topic>):\n=====================================")
        names = sorted(TABLE)
        for row in range(0, len(names), 6):
            terminal.print_line("".join(f"{name:<13}" for name in names[row : row + 6]).rstrip())
        return ExitStatus.OK
    action = TABLE.get(arguments[0])
    if action is None:
        terminal.print_line(f"*** No help on {arguments[0]}")
        return ExitStatus.ERROR
    _print_usage(terminal, action)
    return ExitStatus.OK


TABLE: Mapping[str, Action] = {
    "add": Action(
        using.add,
        (("add NAME ...", "Take programs or groups of the configuration last read into use, and start them."),),
    ),
    "avail": Action(listing.avail, (("avail", "List all configured programs: in use or not, automatic or manual."),)),
    "checkpoint": Action(
        start_stop.checkpoint,
        (
            ("checkpoint NAME ...", "Have jobs write a checkpoint now and train on; returns when it is on the disk."),
            ("checkpoint all", "The same for all jobs that train."),
        ),
        names=True,
    ),
    "checkpoints": Action(
        listing.checkpoints,
        (
            ("checkpoints NAME", "List a job's checkpoints, newest first: step, age, size, whole or why not."),
            ("checkpoints --no-verify NAME", "The same without reading every byte of them."),
            ("checkpoints --verify PATH", "Prove the checkpoints in any folder, or one of them; needs no daemon."),
        ),
        names=True,
    ),
    "clear": Action(
        start_stop.clear,
        (("clear NAME ...", "Empty the log files of programs."), ("clear all", "Empty the log files of all programs.")),
        names=True,
    ),
    "drill": Action(
        notices.drill,
        (
            (
                "drill NAME ... --in TIME",
                "Tell programs that the host goes away in TIME (30s, 2min), to see them save.",
            ),
            ("drill all --in TIME", "Tell all programs so, as a provider would."),
            ("drill NAME ... --in TIME --kind KIND", "The same; KIND is preemption, maintenance, shutdown, ..."),
            ("drill NAME ... --in TIME --possible", "The same, as a notice that need not come true."),
            ("drill NAME ... --withdraw", "Take it back."),
        ),
        names=True,
    ),
    "events": Action(
        events.events,
        (
            ("events [NAME ...]", "Show what happens, to programs or groups, as it happens, until Ctrl-C."),
            ("events --kind KIND[,KIND] [NAME ...]", "Only events of these types, as PROCESS_STATE or CHECKPOINT."),
            ("events --since CURSOR|start [NAME ...]", "Begin behind an event, or with all that the daemon remembers."),
            ("events --no-follow [NAME ...]", "Show what the daemon remembers, then end."),
        ),
        names=True,
    ),
    "export": Action(
        start_stop.export,
        (
            ("export NAME ...", "Have jobs write their models, as they are now, to export_dir as SavedModels."),
            ("export all", "The same for all jobs that train."),
        ),
        names=True,
    ),
    "fg": Action(
        foreground.fg,
        (("fg NAME", "Show what a program prints, and send it the lines you type, until Ctrl-C; it runs on."),),
        names=True,
    ),
    "goodput": Action(
        accounts.goodput,
        (
            (
                "goodput NAME",
                "Show where a job's time went, the share that went into new steps, and what interrupted it.",
            ),
        ),
        names=True,
    ),
    "help": Action(
        show_help, (("help", "List the actions."), ("help ACTION", "Say how an action is used and what it does."))
    ),
    "history": Action(
        listing.history,
        (
            ("history NAME", "List a program's last 20 attempts: when, from which step to which, steps lost, its end."),
            ("history -COUNT NAME", "List the last COUNT attempts, 10000 at most."),
        ),
        names=True,
    ),
    "maintail": Action(
        logs.maintail,
        (
            ("maintail", "Show the last 1600 bytes of the daemon's log."),
            ("maintail -BYTES", "Show the last BYTES bytes of it."),
            ("maintail -f", "Show it as it grows, until Ctrl-C."),
        ),
    ),
    "notices": Action(
        notices.notices,
        (("notices", "List what says that this host goes away, and how the sources of such notices do."),),
    ),
    "open": Action(
        opening.open_url,
        (("open URL", "Talk to another daemon, at unix:///path or http://host:port, and show its status."),),
    ),
    "pid": Action(
        listing.pid,
        (
            ("pid", "Show the daemon's process id."),
            ("pid NAME ...", "Show the process ids of programs, 0 for one that is down."),
            ("pid all", "Show those of all programs, one a line."),
        ),
        names=True,
    ),
    "reload": Action(
        daemon.reload,
        (
            (
                "reload",
                "Start the daemon anew with the configuration as it is now; what did not change runs on.",
            ),
        ),
        question="Really restart the remote supervisord process y/N? ",
    ),
    "remove": Action(
        using.remove,
        (("remove NAME ...", "Take programs or groups that are down out of use, until they are added again."),),
        names=True,
    ),
    "reread": Action(
        daemon.reread, (("reread", "Read the configuration and say what `update` would change; change nothing."),)
    ),
    "restart": Action(
        start_stop.restart,
        (
            ("restart NAME ...", "Stop programs, then start them; the configuration is not read again (see update)."),
            ("restart all", "Stop all programs, then start them all."),
            (
                "restart --rolling NAME ...",
                "One after the other; after one that does not come up the rest is left alone.",
            ),
            ("restart --rolling all", "The same for all programs that are up."),
        ),
        names=True,
    ),
    "shutdown": Action(
        daemon.shutdown,
        (("shutdown", "Flush and stop everything side by side, and end the daemon."),),
        question="Really shut the remote supervisord process down y/N? ",
    ),
    "signal": Action(
        start_stop.send_signal,
        (
            ("signal SIGNAL NAME ...", "Send a signal, by name or number, to the processes of programs."),
            ("signal SIGNAL all", "Send it to all processes."),
        ),
        names=True,
    ),
    "start": Action(
        start_stop.start,
        (
            ("start NAME ...", "Start programs; returns when they run (jobs: when they train) or says why they don't."),
            ("start all", "Start all programs that are down."),
        ),
        names=True,
    ),
    "status": Action(
        listing.status,
        (
            ("status", "Show the standing of all programs."),
            ("status NAME ...", "Show that of some."),
            ("status --watch [NAME ...]", "Show it live, a progress bar for each job, until Ctrl-C."),
        ),
        names=True,
    ),
    "stop": Action(
        start_stop.stop,
        (
            ("stop NAME ...", "Stop programs, jobs after a flush; returns when their processes are gone."),
            ("stop all", "Stop all programs, side by side."),
        ),
        names=True,
    ),
    "story": Action(
        story.story,
        (
            ("story NAME", "Show the last 20 events that changed a program's state, and what the daemon did then."),
            ("story -COUNT NAME", "Show the last COUNT of them, 200 at most."),
        ),
        names=True,
    ),
    "tail": Action(
        logs.tail,
        (
            ("tail NAME [stdout|stderr]", "Show the last 1600 bytes of a program's log, standard output if not said."),
            ("tail -BYTES NAME [stdout|stderr]", "Show the last BYTES bytes of it."),
            ("tail -f NAME [stdout|stderr]", "Show it as it grows, until Ctrl-C."),
        ),
        names=True,
    ),
    "top": Action(
        using.top,
        (
            ("top", "Show live what programs use: processor, memory, GPU memory, steps per second."),
            ("top NAME ...", "Show it of some."),
        ),
        names=True,
    ),
    "update": Action(
        daemon.update,
        (
            ("update", "Read the configuration and make the programs what it says; what did not change runs on."),
            ("update NAME ...", "The same for some programs."),
            ("update all", "The same as update."),
        ),
        names=True,
    ),
    "version": Action(listing.version, (("version", "Show the daemon's version."),)),
}
"""What there is. Names from outside are looked up here and nowhere else."""


def run(terminal: Terminal, name: str, arguments: Arguments) -> ExitStatus:
    """Runs one action and tells what went wrong with it, if anything did. With --json there is always one object.

    Raises LoginNeeded if the terminal can ask for one.
    """
    if not terminal.as_json and JSON not in arguments:
        return _run(terminal, name, arguments)
    terminal = replace(terminal, as_json=True, lines=[], objects=[])
    status = _run(terminal, name, [each for each in arguments if each != JSON])
    if not terminal.objects:
        text = "\n".join(terminal.lines)
        terminal.print_json({"text": text} if status is ExitStatus.OK else {"error": text})
    return status


def _run(terminal: Terminal, name: str, arguments: Arguments) -> ExitStatus:
    action = TABLE.get(name)
    if action is None:
        terminal.print_line(f"*** Unknown syntax: {' '.join([name, *arguments])}")
        return ExitStatus.ERROR
    if any(each in HELP for each in arguments):
        _print_usage(terminal, action)
        return ExitStatus.OK
    try:
        return action.run(terminal, arguments)
    except UsageError as error:
        terminal.print_line(str(error))
        _print_usage(terminal, action)
        return error.status
    except Unreachable as error:
        if terminal.can_prompt and isinstance(error, LoginNeeded):
            raise
        terminal.print_line(str(error))
        return ExitStatus.NOT_RUNNING if error.missing else ExitStatus.UNKNOWN if error.refused else ExitStatus.ERROR
    except Refusal as error:
        return _print_refusal(terminal, error)


def _print_refusal(terminal: Terminal, error: Refusal) -> ExitStatus:
    if error.code == "SHUTDOWN_STATE":
        terminal.print_line("ERROR: supervisor shutting down")
    elif error.code == "FORBIDDEN":
        terminal.print_line(f"ERROR: {error}")
        return ExitStatus.UNKNOWN
    else:
        terminal.print_line(f"ERROR: {error.code}: {error}")
    return ExitStatus.ERROR


def _print_usage(terminal: Terminal, action: Action) -> None:
    width = max(len(usage) for usage, _ in action.usage)
    for usage, meaning in action.usage:
        terminal.print_line(f"{usage:<{width}}  {meaning}")
