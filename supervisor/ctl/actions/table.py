"""Every action of supervisorctl by its name, with its help."""

from collections.abc import Mapping

from supervisor.ctl.actions import (
    checkpoints,
    configuration,
    daemon,
    events,
    foreground,
    gpus,
    history,
    logs,
    notices,
    page,
    prove,
    start_stop,
    status,
)
from supervisor.ctl.actions.base import Action, Arguments, UsageError, print_usage
from supervisor.ctl.terminal import ExitStatus, Terminal


def show_help(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Lists the actions, or shows how one is used."""
    if len(arguments) > 1:
        raise UsageError("Error: help accepts at most one action")
    if not arguments:
        terminal.print_line("default commands (type help <topic>):\n=====================================")
        names = sorted((*TABLE, *LEAVING))
        for row in range(0, len(names), 6):
            terminal.print_line("".join(f"{name:<13}" for name in names[row : row + 6]).rstrip())
        return ExitStatus.OK
    action = find_action(arguments[0])
    if arguments[0] in LEAVING:
        terminal.print_line(f"{arguments[0]}  Exit the supervisor shell.")
        return ExitStatus.OK
    if action is None:
        terminal.print_line(f"*** No help on {arguments[0]}")
        return ExitStatus.ERROR
    print_usage(terminal, action)
    return ExitStatus.OK


TABLE: Mapping[str, Action] = {
    "add": Action(
        configuration.add,
        {"add NAME ...": "Add programs or groups of the configuration last read, and start those with autostart."},
    ),
    "avail": Action(
        configuration.avail,
        {"avail": "List all configured programs: in use or not, started automatically or manually."},
    ),
    "checkpoint": Action(
        checkpoints.checkpoint,
        {
            "checkpoint NAME ...": "Make jobs write a checkpoint now and train on; returns when it is durable.",
            "checkpoint all": "Make all jobs that are training write a checkpoint now.",
        },
        names=True,
    ),
    "checkpoints": Action(
        checkpoints.checkpoints,
        {
            "checkpoints NAME": "List a job's checkpoints, newest first, and verify that they are whole.",
            "checkpoints --no-verify NAME": "List them without verifying; verifying reads every byte.",
            "checkpoints --verify PATH": "Verify one checkpoint, or all in a folder; needs no daemon.",
            "checkpoints --verify URL": "Verify those in a mirror (s3://, gs://, az://, file:///); needs no daemon.",
        },
        names=True,
    ),
    "clear": Action(
        start_stop.clear,
        {
            "clear NAME ...": "Empty the log files of programs and delete their backups.",
            "clear all": "Empty the log files of all programs.",
        },
        names=True,
    ),
    "completion": Action(
        daemon.completion,
        {"completion bash|zsh|fish": "Print the shell code that completes actions and names."},
        options=daemon.SHELLS,
    ),
    "drill": Action(
        notices.drill,
        {
            "drill NAME ... --in TIME": "Practise: tell programs that the host is going away in TIME (30s, 2min).",
            "drill all --in TIME": "Practise with all programs at once.",
            "drill NAME ... --in TIME --kind KIND": "Choose the kind of notice: preemption, maintenance, freeze, ...",
            "drill NAME ... --in TIME --possible": "Give a notice that may not come true: jobs save but do not stop.",
            "drill NAME ... --withdraw": "Withdraw the notices of earlier drills.",
        },
        names=True,
    ),
    "events": Action(
        events.events,
        {
            "events [NAME ...]": "Show the events of all or of some programs as they happen, until Ctrl-C.",
            "events --kind KIND[,KIND] [NAME ...]": "Show only events of these types, such as PROCESS_STATE.",
            "events --since CURSOR|start [NAME ...]": "Begin after an event, or with the oldest one remembered.",
            "events --no-follow [NAME ...]": "Show the events that the daemon remembers, then exit.",
        },
        names=True,
    ),
    "export": Action(
        checkpoints.export,
        {
            "export NAME ...": "Make jobs write their models, as they are now, to export_dir as SavedModels.",
            "export all": "Make all jobs that are training export their models.",
        },
        names=True,
    ),
    "fg": Action(
        foreground.fg,
        {"fg NAME": "Show a program's output and send it what you type, until Ctrl-C; it keeps running."},
        names=True,
    ),
    "goodput": Action(
        history.goodput,
        {"goodput NAME": "Show where a job's time went, the share spent on new steps, and what interrupted it."},
        names=True,
    ),
    "help": Action(
        show_help, {"help": "List the actions.", "help ACTION": "Show how an action is used and what it does."}
    ),
    "gpus": Action(
        gpus.gpus,
        {
            "gpus": "Show the GPUs of the host: who uses them, their faults, and which are left out.",
            "gpus --return UUID": "Let jobs use a GPU again that was left out, with their next start.",
        },
        options=(gpus.RETURN,),
    ),
    "history": Action(
        history.history,
        {
            "history NAME": "List a program's last 20 attempts: when, which steps, steps lost, how they ended.",
            "history -COUNT NAME": "List the last COUNT attempts, at most 10000.",
        },
        names=True,
    ),
    "maintail": Action(
        logs.maintail,
        {
            "maintail": "Show the last 1600 bytes of the daemon's log.",
            "maintail -BYTES": "Show the last BYTES bytes.",
            "maintail -f": "Show the log as it grows, until Ctrl-C.",
        },
    ),
    "notices": Action(
        notices.notices, {"notices": "List the notices that this host is going away, and whether their sources work."}
    ),
    "open": Action(
        daemon.open_url,
        {"open URL": "Connect to another daemon, at unix:///path or http://host:port, and show its status."},
    ),
    "page": Action(
        page.page,
        {
            "page": "Show all programs in a browser of this host, until Ctrl-C; with --hosts those of several hosts.",
            "page --port NUMBER": "Show them at this port.",
        },
        options=page.OPTIONS,
    ),
    "pid": Action(
        status.pid,
        {
            "pid": "Show the daemon's process id.",
            "pid NAME ...": "Show the process ids of programs; 0 for one that is down.",
            "pid all": "Show the process ids of all programs, one on each line.",
        },
        names=True,
    ),
    "prove": Action(
        prove.prove,
        options=prove.OPTIONS,
        usage={
            "prove NAME": "Prove in a scratch folder that kills change no bit of a job: exit status 0, else 1.",
            "prove --steps N NAME": "Train N steps in each run; --epochs X instead: so many epochs.",
            "prove --kills K NAME": "Kill K times, in steps, at ends of epochs and in saves.",
            "prove --anyway NAME": "Prove also while the job trains, or while none of its GPUs is free.",
            "prove --cancel NAME": "End the proof of a job, as Ctrl-C does.",
        },
        names=True,
    ),
    "reload": Action(
        daemon.reload,
        {"reload": "Restart the daemon and read the configuration; unchanged programs keep running."},
        question="Really restart the remote supervisord process y/N? ",
    ),
    "remove": Action(
        configuration.remove,
        {
            "remove NAME ...": "Remove programs or groups that are down, until they are added again.",
            "remove --discard NAME ...": "Also jobs whose last steps are in memory alone, as no disk takes them.",
        },
        names=True,
        options=(configuration.DISCARD,),
    ),
    "reread": Action(configuration.reread, {"reread": "Read the configuration and list what `update` would change."}),
    "restart": Action(
        start_stop.restart,
        options=(start_stop.ROLLING, start_stop.DISCARD),
        usage={
            "restart NAME ...": "Stop programs, then start them; does not read the configuration again (see update).",
            "restart all": "Stop all programs, then start them all. A job that can't save is left training.",
            "restart --discard NAME ...": "Also those that can't save, or could not be started again.",
            "restart --rolling NAME ...": "Restart one after the other; if one fails, leave the rest as they are.",
            "restart --rolling all": "Restart all programs that are up, one after the other.",
        },
        names=True,
    ),
    "rotate": Action(
        start_stop.rotate,
        {
            "rotate NAME ...": "Begin new log files; the present ones become backups, as at their size limit.",
            "rotate all": "Begin new log files for all programs.",
        },
        names=True,
    ),
    "shutdown": Action(
        daemon.shutdown,
        {"shutdown": "Save and stop all programs, side by side, and end the daemon; names jobs that lose steps."},
        question="Really shut the remote supervisord process down y/N? ",
    ),
    "signal": Action(
        start_stop.send_signal,
        {
            "signal SIGNAL NAME ...": "Send a signal, by name or number, to the processes of programs.",
            "signal SIGNAL all": "Send a signal to the processes of all programs.",
        },
        names=True,
    ),
    "start": Action(
        start_stop.start,
        options=(start_stop.FROM_SCRATCH, start_stop.FROM_STEP),
        usage={
            "start NAME ...": "Start programs; returns when they run (jobs: train), or shows why they do not.",
            "start all": "Start all programs that are down.",
            "start --from-step STEP NAME ...": "Begin from the checkpoint of that step; newer ones go to abandoned/.",
            "start --from-scratch NAME ...": "Set the checkpoints of jobs aside, into abandoned/, and begin anew.",
        },
        names=True,
    ),
    "status": Action(
        status.status,
        {
            "status": "Show the status of all programs.",
            "status NAME ...": "Show the status of some programs.",
            "status --watch [NAME ...]": "Show the status live, with a progress bar for each job, until Ctrl-C.",
        },
        names=True,
    ),
    "stop": Action(
        start_stop.stop,
        {
            "stop NAME ...": "Stop programs; jobs save a checkpoint first. Returns when their processes have exited.",
            "stop all": "Stop all programs, side by side.",
        },
        names=True,
    ),
    "series": Action(
        history.series,
        {
            "series NAME": "Show a job's metrics over its steps, with their least and greatest values in between.",
            "series NAME METRIC": "Show one of them, as lines of comma-separated values.",
        },
        names=True,
    ),
    "timeline": Action(
        history.timeline,
        {
            "timeline NAME": "Show a program's last 20 events and what the daemon did after each.",
            "timeline -COUNT NAME": "Show the last COUNT events, at most 200.",
        },
        names=True,
    ),
    "tail": Action(
        logs.tail,
        {
            "tail NAME [stdout|stderr]": "Show the last 1600 bytes of a program's log (default: stdout).",
            "tail -BYTES NAME [stdout|stderr]": "Show the last BYTES bytes.",
            "tail -f NAME [stdout|stderr]": "Show the log as it grows, until Ctrl-C.",
            "tail --attempt N NAME [stdout|stderr]": "Show the end of what attempt N printed; with -BYTES more of it.",
        },
        names=True,
    ),
    "top": Action(
        status.top,
        {
            "top": "Show live what programs use: processor, memory, GPU memory, steps per second.",
            "top NAME ...": "Show what some programs use.",
        },
        names=True,
    ),
    "update": Action(
        configuration.update,
        {
            "update": "Read the configuration and apply it; unchanged programs keep running.",
            "update NAME ...": "Read the configuration and apply it to some programs only.",
            "update all": "Apply it to all programs, like update.",
            "update --discard [NAME ...]": (
                "Apply it to jobs that would lose steps by it, too, and to programs that could not be started again."
            ),
        },
        names=True,
        options=(configuration.DISCARD,),
    ),
    "version": Action(daemon.version, {"version": "Show the daemon's version."}),
}
"""All actions. Names from outside are looked up in `find_action` and nowhere else."""

LEAVING = ("exit", "quit")
"""End the shell; outside of it they do nothing, as in Supervisor."""

ALIASES: Mapping[str, str] = {"story": "timeline"}
"""Earlier names of actions, which go on working."""


def find_action(name: str) -> Action | None:
    """The action of that name or alias."""
    return TABLE.get(ALIASES.get(name, name))
