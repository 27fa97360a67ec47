"""Checks of the keys of one program against each other: each may be valid by itself and their combination wrong."""

import contextlib
import importlib.util
import re
from pathlib import Path

from supervisor.config.keys.program import ProgramConfig
from supervisor.config.schema.check import SectionReader, UnknownValue
from supervisor.core.program.facts import Durable
from supervisor.core.standby.facts import StandbyKind
from supervisor.ini.reader import is_file
from supervisor.protocol.durable import open_regular
from supervisor.protocol.installation import install_extra

DAEMON_STREAMS = frozenset({Path("/dev/stdout"), Path("/dev/stderr")}) | {
    Path(f"{folder}/{number}") for folder in ("/dev/fd", "/proc/self/fd") for number in (1, 2)
}

_OUR_NAMES = re.compile(r"\bworker\.(Run|strategy|Examples|keras|torch|tf1|files)\b")
"""What a script uses of the package `worker`."""
MAX_SCRIPT_BYTES = 1 << 20

_OUTPUT_KEYS = ("syslog", "journal", "events_enabled", "capture_maxbytes", "line_prefix")

EVENTS_OF_OUTPUT = {
    f"{channel}_{key}": f"{event}_{channel.upper()}"
    for channel in ("stdout", "stderr")
    for key, event in (("events_enabled", "PROCESS_LOG"), ("capture_maxbytes", "PROCESS_COMMUNICATION"))
}
"""Keys that turn output into events, and the event."""


def check_key_combinations(reader: SectionReader, job_keys: set[str]) -> None:
    """Adds problems for keys of a program that exclude or need each other."""
    is_job = "checkpoint_dir" in reader
    if "command" in reader and "entrypoint" in reader:
        text = "has both command and entrypoint; delete one of them (an entrypoint implies its command)"
        reader.add_problem(text, "entrypoint")
    elif is_job and not ("command" in reader or "entrypoint" in reader):
        reader.add_problem("has neither command nor entrypoint; add one of them", "checkpoint_dir")
    elif "command" not in reader and not (job_keys & reader.ini.entries.keys()):
        reader.add_problem("has no command; add command = PROGRAM ARGUMENTS", "command")
    for key in ("healthcheck_interval", "healthcheck_timeout", "healthcheck_retries"):
        if key in reader and "healthcheck_command" not in reader:
            reader.add_problem(f"{key} has no effect without healthcheck_command; add that, or delete the line", key)
    if "notify_timeout" in reader and "notify" not in reader:
        reader.add_problem(
            "notify_timeout has no effect without notify = true; add that, or delete the line", "notify_timeout"
        )
    if is_job and "notify" in reader:
        reader.add_problem("notify is not for training jobs: a job is ready when it trains; delete the line", "notify")
    if is_job and "python" in reader and "command" in reader:
        reader.add_problem("python has no effect without entrypoint; write the interpreter into command", "python")


def check_program(program: ProgramConfig, reader: SectionReader) -> None:
    """Adds problems for values of one program that contradict each other or don't fit this host.

    A value that is wrong itself contradicts nothing.
    """
    for check in (
        _check_kill, _check_ready, _check_strategy, _check_workers, _check_nodes, _check_standby, _check_interval,
        _check_shadow, _check_mirror, _check_own_folders, _check_replay,
    ):  # fmt: skip
        with contextlib.suppress(UnknownValue):
            check(program, reader)
    for channel in ("stdout", "stderr"):
        with contextlib.suppress(UnknownValue):
            _check_log(program, reader, channel)


def _check_kill(program: ProgramConfig, reader: SectionReader) -> None:
    if program.stopasgroup and not program.killasgroup:
        text = (
            "killasgroup is false but stopasgroup is true: processes that ignore the stop signal would keep running; "
            "set killasgroup = true"
        )
        reader.add_problem(text, "killasgroup")


def _check_ready(program: ProgramConfig, reader: SectionReader) -> None:
    if program.listener is not None and program.notify:
        reader.add_problem(
            "notify is not for event listeners: a listener is ready when it prints READY; delete the line", "notify"
        )


def _check_standby(program: ProgramConfig, reader: SectionReader) -> None:
    job = program.job
    if job is None or job.standby not in (StandbyKind.WARM, StandbyKind.HOT):
        return
    if job.standby is StandbyKind.HOT and job.entrypoint is None:
        text = (
            "standby is hot but the job has no entrypoint: only the loop of an entrypoint can be prepared ahead; "
            "set standby = warm, or an entrypoint"
        )
        reader.add_problem(text, "standby")
    if job.strategy in ("multiworker", "tpu"):
        reader.add_problem(f"standby can't be {job.standby} with strategy = {job.strategy}; delete the line", "standby")


def _check_interval(program: ProgramConfig, reader: SectionReader) -> None:
    job = program.job
    if job is not None and job.checkpoint_interval_min > job.checkpoint_interval_max:
        text = (
            f"checkpoint_interval_min is {job.checkpoint_interval_min:g} s but checkpoint_interval_max is "
            f"{job.checkpoint_interval_max:g} s; set a minimum that is not above the maximum"
        )
        reader.add_problem(text, "checkpoint_interval_min")


def _check_replay(program: ProgramConfig, reader: SectionReader) -> None:
    job = program.job
    if job is None:
        return
    if job.replay is None:
        if "on_replay_difference" in reader:
            text = "on_replay_difference has no effect without replay; add for example replay = 1%, or delete the line"
            reader.add_problem(text, "on_replay_difference")
    elif not job.deterministic:
        text = "replay compares bits, but deterministic is false, so they would differ; set deterministic = true"
        reader.add_problem(text, "replay")
    elif job.strategy in ("multiworker", "tpu"):
        reader.add_problem(f"replay can't be used with strategy = {job.strategy}; delete the line", "replay")


def _check_mirror(program: ProgramConfig, reader: SectionReader) -> None:
    """Adds problems for a mirror that can't work, and for its keys without it."""
    job = program.job
    if job is None:
        return
    if job.mirror is not None and importlib.util.find_spec("obstore") is None:
        text = "mirror needs the package obstore in the environment of supervisord"
        reader.add_problem(f"{text}; install it with: {install_extra('mirror')}", "mirror")
    for key in ("mirror_keep", "mirror_rate_limit"):
        if key in reader and job.mirror is None:
            reader.add_problem(f"{key} has no effect without mirror; add that, or delete the line", key)
    if job.durable is Durable.REMOTE and job.mirror is None:
        text = "durable is remote but the job has no mirror; add mirror = s3://BUCKET/PREFIX, or delete the line"
        reader.add_problem(text, "durable")


def _check_own_folders(program: ProgramConfig, reader: SectionReader) -> None:
    """Adds problems for nodes with folders of their own, of which the mirror alone makes checkpoints."""
    job = program.job
    if job is None or job.checkpoint_dir_shared:
        return
    key, without = "checkpoint_dir_shared", "or delete the line and use a folder that all nodes see"
    if job.strategy != "multiworker" or job.workers is not None:
        text = "checkpoint_dir_shared is for several nodes: strategy = multiworker, without workers; delete the line"
        reader.add_problem(text, key)
        return
    if job.mirror is None:
        text = "checkpoint_dir_shared is false but the job has no mirror, and no node would have a whole checkpoint"
        reader.add_problem(f"{text}; add mirror = s3://BUCKET/PREFIX, {without}", key)
    if job.initial_checkpoint is not None:
        text = "initial_checkpoint can't be used with checkpoint_dir_shared = false, as nothing proves that all nodes "
        reader.add_problem(f"{text}have the same one; begin once on one node, {without}", key)
    if job.on_nan == "skip":
        text = "on_nan = skip can't be used with checkpoint_dir_shared = false, as the other nodes don't see which "
        reader.add_problem(f"{text}batches are left out; set on_nan = rollback, {without}", "on_nan")


def _check_shadow(program: ProgramConfig, reader: SectionReader) -> None:
    """Adds a problem for a script that would import another `worker` than stepkeeper's, from its own folder."""
    scripts = [argument for argument in program.command[1:] if argument.endswith(".py")]
    if program.job is None or not scripts:
        return
    script = (program.directory or Path()) / scripts[0]
    package = script.parent / "worker"
    is_package = is_file(package / "__init__.py") and not is_file(package / "process" / "startup.py")
    try:
        with open_regular(script) as file:  # its user may have put a pipe or /dev/zero there
            uses_ours = _OUR_NAMES.search(file.read(MAX_SCRIPT_BYTES).decode(errors="replace")) is not None
    except OSError:  # the program's user may see it
        return
    own = package.with_suffix(".py") if is_file(package.with_suffix(".py")) else package if is_package else None
    if own is not None and uses_ours:
        text = (
            f"{scripts[0]} would import {own} instead of stepkeeper's package worker, because Python looks in the "
            f"script's folder first; rename {own.name}"
        )
        reader.add_problem(text, "command")


def _check_strategy(program: ProgramConfig, reader: SectionReader) -> None:
    """Adds a problem for a number of replicas that the strategy does not take."""
    job = program.job
    if job is None:
        return
    if job.replicas_min is not None and job.strategy in ("one-device", "multiworker", "tpu"):
        text = f"replicas_min has no effect with strategy = {job.strategy}; delete the line"
        reader.add_problem(text, "replicas_min")
    elif job.replicas_min is not None and job.replicas is not None and job.replicas_min > job.replicas:
        text = f"replicas_min is {job.replicas_min} but replicas is {job.replicas}; set it to that at most"
        reader.add_problem(text, "replicas_min")
    if job.strategy == "one-device" and (job.replicas or 1) > 1:
        text = f"replicas is {job.replicas} but strategy is one-device; delete one of them, or set strategy = mirrored"
        reader.add_problem(text, "replicas")
    elif job.strategy in ("multiworker", "tpu") and job.replicas is not None:
        remedy = (
            "set the number of processes with workers" if job.strategy == "multiworker" else "a TPU uses all its cores"
        )
        reader.add_problem(
            f"replicas has no effect with strategy = {job.strategy}; delete the line ({remedy})", "replicas"
        )


def _check_workers(program: ProgramConfig, reader: SectionReader) -> None:
    job = program.job
    if job is None or job.workers is None:
        return
    if job.strategy not in (None, "multiworker"):
        reader.add_problem(
            f"workers is for strategy = multiworker, but strategy is {job.strategy}; delete one of them", "workers"
        )
    if "TF_CONFIG" in program.environment:
        text = (
            "workers starts processes on this host, but TF_CONFIG names processes of several hosts; delete one of them"
        )
        reader.add_problem(text, "workers")


def _check_nodes(program: ProgramConfig, reader: SectionReader) -> None:
    job = program.job
    if job is None or job.nodes is None:
        return
    if job.strategy != "multiworker":
        reader.add_problem("nodes has no effect without strategy = multiworker; add that, or delete the line", "nodes")
    if job.workers is not None:
        text = "nodes is for several hosts, but workers for several processes of one host; delete one of them"
        reader.add_problem(text, "nodes")


def _check_log(program: ProgramConfig, reader: SectionReader, channel: str) -> None:
    key = f"{channel}_logfile"
    for log in (f"{channel}_{output_key}" for output_key in _OUTPUT_KEYS):
        if getattr(program, log) and channel == "stderr" and program.redirect_stderr:
            reader.add_remark(f"{log} has no effect while redirect_stderr is true", log)
        elif getattr(program, log) and getattr(program, key) in DAEMON_STREAMS and log not in EVENTS_OF_OUTPUT:
            # events are judged when all listeners are known
            reader.add_problem(f"{no_output(log, key)}; set {key} = NONE, or delete {log}", log)
    file, size = getattr(program, key), getattr(program, f"{key}_maxbytes")
    if channel == "stderr" and program.redirect_stderr:
        if key in reader and reader.ini.entries[key].value.upper() not in ("AUTO", "NONE"):
            reader.add_remark(f"{key} has no effect while redirect_stderr is true", key)
    elif file is not None and (file.is_relative_to("/dev") or file.is_relative_to("/proc")) and size > 0:
        reader.add_remark(f"{key} is {file}, which is never rotated", key)


def no_output(log: str, key: str) -> str:
    return f"{log} needs the output of the program, but this {key} gives it the daemon's own output"
