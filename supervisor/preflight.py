"""`--check-config`: what this host lacks of what a valid configuration names. Creates nothing, starts nothing.

What would end the daemon's start is an obstacle; what would keep one program from running is a remark.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from supervisor.config import Config, JobConfig, ProgramConfig, SupervisordConfig
from supervisor.config.keys.hooks import HookKeys
from supervisor.config.program import NO_COMMAND
from supervisor.host import hooks
from supervisor.host.ledger.ledger import LedgerError, check_state_folder
from supervisor.host.ledger.wanted_file import FILE, peek_wanted
from supervisor.host.processes.credentials import find_credentials
from supervisor.host.processes.reach import explain_closed_folder
from supervisor.host.processes.spawning import SpawnError, current_folder, find_command, require_interpreter
from supervisor.ini.ownership import why_not_as_root
from supervisor.protocol.checkpoints.account import ProgressAccount, SeenDirectory, find_loss
from supervisor.protocol.checkpoints.directory import view_directory
from supervisor.protocol.mirror.keys import run_of
from supervisor.protocol.mirror.store_folder import why_not_there
from supervisor.protocol.mount_points import missing_volume
from supervisor.protocol.mounts import mount_of, remarks_on

_REMEDY = "make it writable for this user, or configure another path in [supervisord]"


def daemon_obstacles(config: Config) -> list[str]:
    """What would end the start of the daemon: files and folders that it can't make, in the words of the start.

    If it becomes another user, whose rights are not known before, only whether this version can use its state.
    """
    settings = config.supervisord
    try:
        check_state_folder(settings.state_dir)
    except LedgerError as error:
        return [str(error)]
    except OSError:
        pass  # said below, if this user is the one that needs it
    if settings.user is not None and find_credentials(settings.user).uid != os.geteuid():
        return []
    made = [settings.state_dir, settings.childlogdir]
    reasons = [(path, _why_not_folder(path)) for path in made]
    files = [path for path in (settings.logfile, settings.changes_logfile, settings.pidfile) if path is not None]
    reasons += [(file, _why_not_file(file, made)) for file in files]
    obstacles = [f"cannot start supervisord: cannot use {path}: {why}; {_REMEDY}" for path, why in reasons if why]
    for server in config.unix_http_servers:
        if why := _why_not_entry(server.file, made):
            remedy = "set [unix_http_server] file to a path in an existing folder that this user can write to"
            obstacles.append(f"cannot listen on {server.file}: {why}; {remedy}")
    return obstacles


def places_of_others(settings: SupervisordConfig, environment: Mapping[str, str]) -> dict[str, str]:
    """By key, why other users decide what is in the folders that a root daemon believes, and what to do."""
    if settings.user is not None:  # whose folders they are
        return {}
    folders = {"state_dir": settings.state_dir, "runtime_dir": settings.runtime_dir}
    reasons = {key: why_not_as_root(folder, environment) for key, folder in folders.items()}
    return {key: reason for key, reason in reasons.items() if reason is not None}


def program_remarks(config: Config, environment: Mapping[str, str]) -> list[str]:
    """What would keep programs from running, what checkpoints can't rely on where they are to lie, and who else can
    write what the daemon believes."""
    believed = places_of_others(config.supervisord, environment)
    remarks = [
        f"{config.path}: [supervisord] {key}: {why}; the daemon believes what is in there"
        for key, why in believed.items()
    ]
    remarks += [f"{config.path}: [supervisord] {text}" for text in _hook_remarks(config.supervisord, "hooks")]
    wanted = peek_wanted(config.supervisord.state_dir / FILE)
    for name, program in config.programs.items():
        place = (
            f"{config.path}: [program:{name}]" if program.listener is None else f"{config.path}: [eventlistener:{name}]"
        )
        known = {**environment, **config.supervisord.environment, **program.environment}
        texts = [
            *_command_remarks(name, program, known, config.supervisord.directory),
            *_hook_remarks(program, name),
            *_folder_remarks(program, config),
        ]
        if program.job is not None and not any(text.startswith("checkpoint_dir") for text in texts):
            texts += _storage_remarks(program.job.checkpoint_dir)
            account = ProgressAccount() if wanted is None else wanted.progress.get(name, ProgressAccount())
            texts += _progress_remarks(name, program.job, account, is_ours=_is_own_user(program))
        mirror = program.job.mirror if program.job is not None and _is_own_user(program) else None
        if mirror is not None and (why := why_not_there(mirror, run_of(name))) is not None:
            texts.append(f"mirror: {why}")
        remarks += [f"{place} {text}" for text in texts]
    return remarks


def _command_remarks(
    name: str, program: ProgramConfig, environment: Mapping[str, str], daemon_folder: Path | None
) -> Iterator[str]:
    folder = program.directory or daemon_folder
    if program.command == NO_COMMAND:
        return  # the file's remarks say so
    if (why := _why_no_command(program.command[0], environment, folder, name)) is not None:
        yield why
        return
    for key, beside in (("healthcheck_command", program.healthcheck_command), ("stop_command", program.stop_command)):
        if beside is not None and (why := _why_no_command(beside[0], environment, folder, name)) is not None:
            yield f"{key}: {why.removeprefix(f'cannot start {name}: ')}"
    here = folder or current_folder()
    script = next((argument for argument in program.command[1:] if not argument.startswith("-")), "")
    is_module = any(argument in ("-m", "-c") for argument in program.command[1:])
    is_script = script.endswith(".py") and not is_module and "python" in Path(program.command[0]).name
    if is_script and _is_missing(here / script):
        yield f"command: there is no {here / script}; correct the path, or set `directory`"
    if program.job is not None and program.job.entrypoint is None and (remark := _silent_script(program, here)):
        yield remark
    job = program.job
    if job is not None and job.entrypoint is not None and (missing := _missing_module(job.entrypoint, here)):
        yield f"entrypoint: there is no {missing}; correct the name, or set `directory` to the folder it lies in"


def _hook_remarks(keys: HookKeys, name: str) -> Iterator[str]:
    """What would keep hooks from running, which must not be found when one is needed."""
    for event, command in keys.hooks().items():
        if command and (why := _why_no_command(command[0], {"PATH": hooks.PATH}, hooks.FOLDER, name)) is not None:
            yield f"hook_{event}: {why.removeprefix(f'cannot start {name}: ')}"


def _why_no_command(command: str, environment: Mapping[str, str], folder: Path | None, program: str) -> str | None:
    try:
        require_interpreter(find_command(command, environment, folder, program), program)
    except SpawnError as error:
        return str(error)
    return None


def _silent_script(program: ProgramConfig, folder: Path) -> str | None:
    """What is to be said of a job's script that does not seem to use the package `worker`; None if it does."""
    from supervisor.config.first_file.command_survey import WorkerUse, survey_command  # a daemon has no use for them
    from supervisor.config.first_file.script_survey import ScriptError

    try:
        survey = survey_command(program.command, folder)
    except ScriptError as error:
        return f"command: {error}"
    if survey.use is WorkerUse.YES or survey.script is None:
        return None
    remedy = "train with worker.Run (docs/recipes.md), or remove checkpoint_dir"
    if survey.use is WorkerUse.NO:
        return f"command: {survey.script} does not use worker, so the job would save nothing and fail; {remedy}"
    others = f" ({', '.join(survey.may_use_it)})" if survey.may_use_it else ""
    return f"command: {survey.script} does not use worker itself; unless what it runs does{others}, the job will fail"


def _missing_module(entrypoint: str, folder: Path) -> Path | None:
    """The file that is missing of a module whose first part lies in the folder; None if it may be installed."""
    first, *others = entrypoint.partition(":")[0].split(".")
    if _is_missing(folder / first / "."):
        return None  # a single file, or installed where only the job's interpreter looks
    module = (folder / first).joinpath(*others)
    file = module.with_suffix(".py")
    return file if _is_missing(module / ".") and _is_missing(file) else None


def _is_missing(path: Path) -> bool:
    """Whether there is no such file for sure; the job's user may be able to look where this one may not."""
    try:
        return not _exists(path)
    except OSError:
        return False


def _folder_remarks(program: ProgramConfig, config: Config) -> Iterator[str]:
    """Log files and checkpoint directories that can't be made by who makes them, as far as that is this user."""
    made = [config.supervisord.childlogdir]
    for key, path in (("stdout_logfile", program.stdout_logfile), ("stderr_logfile", program.stderr_logfile)):
        if path is not None and not path.is_relative_to("/dev") and (why := _why_not_file(path, made)):
            yield f"{key}: cannot write {path}: {why}; its output would be dropped"
    if (closed := _why_out_of_reach(program, config.supervisord.runtime_dir)) is not None:
        yield f"user: {closed}"
    if program.job is not None and _is_own_user(program) and (why := _why_not_folder(program.job.checkpoint_dir)):
        yield f"checkpoint_dir: cannot use {program.job.checkpoint_dir}: {why}"


def _why_out_of_reach(program: ProgramConfig, folder: Path) -> str | None:
    """What keeps the program's user from the pipes or the socket that the daemon makes for it; None if nothing does."""
    if program.user is None or os.geteuid() != 0 or not (program.job is not None or program.notify):
        return None
    who = find_credentials(program.user).identity
    why = explain_closed_folder(folder / program.name, program.user, who)
    return None if why is None else f"{why}; it could not report to the daemon"


def _is_own_user(program: ProgramConfig) -> bool:
    """Whether its worker has this user's rights: those of others are not known."""
    return program.user is None or find_credentials(program.user).uid == os.geteuid()


def _storage_remarks(folder: Path) -> list[str]:
    """What checkpoints can't rely on in the file system of a checkpoint directory."""
    try:
        mount, missing = mount_of(folder), missing_volume(folder)
    except OSError as error:
        return [f"checkpoint_dir: cannot look at {folder}: {error.strerror}"]
    if missing is not None:
        return [f"checkpoint_dir: {missing}; the job will wait until it is"]
    return [f"checkpoint_dir: {remark}" for remark in (() if mount is None else remarks_on(mount))]


def _progress_remarks(name: str, job: JobConfig, account: ProgressAccount, *, is_ours: bool) -> list[str]:
    """That the checkpoint directory lacks the newest checkpoint that the daemon knows of: `update` would refuse it.

    What is in the folder of another user (not `is_ours`) is listed and not read.
    """
    newest, directory = account.newest, str(job.checkpoint_dir)
    if newest is None or newest.directory == directory or job.mirror is not None:
        return []
    try:
        seen = view_directory(job.checkpoint_dir, newest.name if is_ours else None)
    except OSError as error:
        return [f"checkpoint_dir: cannot look for {newest.name} in {directory}: {error.strerror}"]
    place = SeenDirectory(directory, seen.highest_step, seen.mount, seen.passed_over)
    loss = find_loss(newest, place, f"cannot go on with {name}", f"update --discard {name} applies it as it is")
    return [] if loss is None else [f"checkpoint_dir: {loss.text}"]


def _why_not_folder(path: Path) -> str:
    """Why a folder can neither be used nor made; empty if it can."""
    try:
        if _exists(path):
            return _why_not_writable(path)
        above = next((parent for parent in path.parents if _exists(parent)), Path("/"))
    except OSError as error:
        return error.strerror or str(error)
    if above.is_relative_to("/proc"):
        return "No such file or directory"
    return f"{why} ({above})" if (why := _why_not_writable(above)) else ""


def _why_not_writable(folder: Path) -> str:
    if not os.path.isdir(folder):  # noqa: PTH112 - Path.is_dir raises where one may not look
        return "Not a directory"
    if os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        return ""
    return "Read-only file system" if os.geteuid() == 0 else "Permission denied"


def _why_not_entry(path: Path, made: list[Path]) -> str:
    """Why no entry can be made in the folder of `path`. `made`: folders that are made at the start."""
    try:
        if _exists(path.parent):
            return _why_not_writable(path.parent)
    except OSError as error:
        return error.strerror or str(error)
    is_made = any(folder.is_relative_to(path.parent) for folder in made)
    return "" if is_made else "No such file or directory"


def _why_not_file(path: Path, made: list[Path]) -> str:
    try:
        if not _exists(path):
            return _why_not_entry(path, made)
    except OSError as error:
        return error.strerror or str(error)
    if os.path.isdir(path):  # noqa: PTH112 - as above
        return "Is a directory"
    return "" if os.access(path, os.W_OK, effective_ids=True) else "Permission denied"


def _exists(path: Path) -> bool:
    """Whether there is such a file. Raises OSError where one may not look, or links lead round in a circle."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
