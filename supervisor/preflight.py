"""`--check-config`: what this host lacks of what a valid configuration names. Creates nothing, starts nothing.

What would end the daemon's start is an obstacle; what would keep one program from running is a remark.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from supervisor.config import Config, JobConfig, ProgramConfig
from supervisor.host.ledger.wanted_file import FILE, read_wanted
from supervisor.host.processes.credentials import find_credentials
from supervisor.host.processes.spawning import SpawnError, find_command
from supervisor.protocol.checkpoints.account import Place, ProgressAccount, find_loss
from supervisor.protocol.checkpoints.directory import view_directory
from supervisor.protocol.mounts import mount_of, remarks_on

_REMEDY = "make it writable for this user, or configure another path in [supervisord]"


def daemon_obstacles(config: Config) -> list[str]:
    """What would end the start of the daemon: files and folders that it can't make, in the words of the start.

    Empty if it becomes another user, whose rights are not known before.
    """
    settings = config.supervisord
    if settings.user is not None and find_credentials(settings.user).uid != os.geteuid():
        return []
    made = [settings.state_dir, settings.childlogdir]
    found = [(each, _why_not_folder(each)) for each in made]
    files = [each for each in (settings.logfile, settings.pidfile) if each is not None]
    found += [(each, _why_not_file(each, made)) for each in files]
    obstacles = [f"cannot start supervisord: cannot use {path}: {why}; {_REMEDY}" for path, why in found if why]
    for server in config.unix_http_servers:
        if why := _why_not_entry(server.file, made):
            remedy = "set [unix_http_server] file to a path in an existing folder that this user can write to"
            obstacles.append(f"cannot listen on {server.file}: {why}; {remedy}")
    return obstacles


def program_remarks(config: Config, environment: Mapping[str, str]) -> list[str]:
    """What would keep programs from running, and what checkpoints can't rely on where they are to lie."""
    remarks: list[str] = []
    wanted = read_wanted(config.supervisord.state_dir / FILE)
    for name, program in config.programs.items():
        place = (
            f"{config.path}: [program:{name}]" if program.listener is None else f"{config.path}: [eventlistener:{name}]"
        )
        known = {**environment, **config.supervisord.environment, **program.environment}
        found = [
            *_command_remarks(name, program, known, config.supervisord.directory),
            *_folder_remarks(program, config),
        ]
        if program.job is not None and not any(each.startswith("checkpoint_dir") for each in found):
            found += _storage_remarks(program.job.checkpoint_dir)
            account = ProgressAccount() if wanted is None else wanted.progress.get(name, ProgressAccount())
            found += _progress_remarks(name, program.job, account, is_ours=_is_ours(program))
        remarks += [f"{place} {each}" for each in found]
    return remarks


def _command_remarks(
    name: str, program: ProgramConfig, environment: Mapping[str, str], daemon_folder: Path | None
) -> Iterator[str]:
    folder = program.directory or daemon_folder
    try:
        find_command(program.command[0], environment, folder, name)
    except SpawnError as error:
        yield str(error)
        return
    here = folder or Path.cwd()
    script = next((each for each in program.command[1:] if not each.startswith("-")), "")
    is_module = any(each in ("-m", "-c") for each in program.command[1:])
    is_script = script.endswith(".py") and not is_module and "python" in Path(program.command[0]).name
    if is_script and not (here / script).exists():
        yield f"command: there is no {here / script}; correct the path, or set `directory`"
    job = program.job
    if job is not None and job.entrypoint is not None and (missing := _missing_module(job.entrypoint, here)):
        yield f"entrypoint: there is no {missing}; correct the name, or set `directory` to the folder it lies in"


def _missing_module(entrypoint: str, folder: Path) -> Path | None:
    """The file that is missing of a module whose first part lies in the folder; None if it may be installed."""
    first, *others = entrypoint.partition(":")[0].split(".")
    if not (folder / first).is_dir():
        return None  # a single file, or installed where only the job's interpreter looks
    module = (folder / first).joinpath(*others)
    return None if module.is_dir() or module.with_suffix(".py").exists() else module.with_suffix(".py")


def _folder_remarks(program: ProgramConfig, config: Config) -> Iterator[str]:
    """Log files and checkpoint directories that can't be made by who makes them, as far as that is this user."""
    made = [config.supervisord.childlogdir]
    for key, path in (("stdout_logfile", program.stdout_logfile), ("stderr_logfile", program.stderr_logfile)):
        if path is not None and not path.is_relative_to("/dev") and (why := _why_not_file(path, made)):
            yield f"{key}: cannot write {path}: {why}; its output would be dropped"
    if program.job is not None and _is_ours(program) and (why := _why_not_folder(program.job.checkpoint_dir)):
        yield f"checkpoint_dir: cannot use {program.job.checkpoint_dir}: {why}"


def _storage_remarks(folder: Path) -> list[str]:
    """What checkpoints can't rely on in the file system of a checkpoint directory."""
    try:
        mount = mount_of(folder)
    except OSError as error:
        return [f"checkpoint_dir: cannot look at {folder}: {error.strerror}"]
    return [f"checkpoint_dir: {each}" for each in (() if mount is None else remarks_on(mount))]


def _is_ours(program: ProgramConfig) -> bool:
    """Whether it runs as this user."""
    return program.user is None or find_credentials(program.user).uid == os.geteuid()


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
    place = Place(directory, seen.highest_step, seen.mount, seen.passed_over)
    loss = find_loss(newest, place, f"cannot go on with {name}", f"update --discard {name} applies it as it is")
    return [] if loss is None else [f"checkpoint_dir: {loss.text}"]


def _why_not_folder(path: Path) -> str:
    """Why a folder can neither be used nor made; empty if it can."""
    if path.exists():
        return _why_not_writable(path)
    above = next((each for each in path.parents if each.exists()), Path("/"))
    if above.is_relative_to("/proc"):
        return "No such file or directory"
    return f"{why} ({above})" if (why := _why_not_writable(above)) else ""


def _why_not_writable(folder: Path) -> str:
    if not folder.is_dir():
        return "Not a directory"
    if os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        return ""
    return "Read-only file system" if os.geteuid() == 0 else "Permission denied"


def _why_not_entry(path: Path, made: list[Path]) -> str:
    """Why no entry can be made in the folder of `path`. `made`: folders that are made at the start."""
    if path.parent.exists():
        return _why_not_writable(path.parent)
    is_made = any(each.is_relative_to(path.parent) for each in made)
    return "" if is_made else "No such file or directory"


def _why_not_file(path: Path, made: list[Path]) -> str:
    if not path.exists():
        return _why_not_entry(path, made)
    if path.is_dir():
        return "Is a directory"
    return "" if os.access(path, os.W_OK, effective_ids=True) else "Permission denied"
