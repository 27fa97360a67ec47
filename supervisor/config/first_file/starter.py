"""`supervisord --init`: writes a commented configuration file that runs a script, and says what to type next."""

import hashlib
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from supervisor.config.first_file.command_survey import survey_with_modules
from supervisor.config.first_file.interpreters import find_interpreter, has_worker, missing_packages, missing_worker
from supervisor.config.first_file.script_start import ScriptStart, how_started, named_script
from supervisor.config.first_file.script_survey import ScriptError, ScriptKind, ScriptSurvey
from supervisor.config.groups import MAX_NAME_BYTES, RESERVED
from supervisor.config.load import check_config
from supervisor.config.server_relations import MAX_SOCKET_PATH_BYTES
from supervisor.ini.ownership import why_not_as_root
from supervisor.ini.problems import ConfigError
from supervisor.ini.reader import candidates
from supervisor.protocol.installation import install_stepkeeper

_HEAD = """\
; {what}
; A line that begins with ; is a comment. Paths start from the folder of this file, which is %(here)s.
; Every key with its default: echo_supervisord_conf. After a change: supervisorctl update

[supervisord]
; Logs, the history and what is wanted lie in .stepkeeper beside this file.
;state_dir = /var/lib/stepkeeper

[unix_http_server]
; where supervisorctl reaches the daemon
file = {socket}

[supervisorctl]
serverurl = unix://{socket}
"""

_NOTHING_YET = """
; A training job: supervisord --init train.py writes this section by looking at the script.
;[program:train]
;command = python train.py
;directory = %(here)s
;checkpoint_dir = checkpoints/train

; Any other program, as in Supervisor. It is started again whenever it ends with another status than 0.
;[program:web]
;command = python -m http.server 8000
;directory = %(here)s
"""

_STRATEGY = """\
; For more than one device (what worker.strategy() then gives; without GPUs, that many CPU devices):
;strategy = mirrored
;replicas = 2
"""
_JOB = """\
; How often to save. Left out, the worker weighs what a save costs against how often the job fails.
;checkpoint_interval = 10 minutes
; How many checkpoints stay.
;checkpoint_keep = 5
; Repeat the same bits after a restart; some operations are slower.
;deterministic = true
; A process with the imports done is kept beside the worker, ready to take over.
;standby = auto
"""
_EXPORT = """\
; For a SavedModel at the end, and whenever supervisorctl export asks for it.
;export_dir = export
"""
_PLAIN = """\
; It is started again when it ends with another status than 0. Supervisor's keys keep their meaning:
;autorestart = unexpected
;stdout_logfile = %(here)s/NAME.log
;redirect_stderr = true
"""
_NO_JOB = """\
; The script imports {framework}, but does not use stepkeeper's package worker, so it begins anew after each restart.
; A few lines make it a job that goes on from its newest checkpoint (docs/recipes.md); then add:
;checkpoint_dir = checkpoints/NAME
"""
_OWN_CHECKPOINTS = """\
; The script imports {framework} and restores a state of its own ({resumes}), so after a restart it may go on
; from that. Nobody proves such a checkpoint whole, and a notice saves nothing. A few lines make it a job, whose first
; start takes the newest of them (docs/recipes.md, initial_checkpoint); then add:
;checkpoint_dir = checkpoints/NAME
"""


def write_starter(words: Sequence[str], target: Path, environment: Mapping[str, str]) -> str:
    """Writes the file `target`, which must not exist yet, and gives what to tell the user.

    `words`: the script and its arguments, or `-m MODULE` and its arguments; none for a file without programs.

    Raises ScriptError if the script can't be read, OSError if the file can't be written.
    """
    said: list[str] = []
    is_job = False
    if not words:
        text = _head("Configuration of supervisord.", target, environment) + _NOTHING_YET
        what = "it has no programs yet; add yours"
    else:
        here = Path(os.path.abspath("."))  # noqa: PTH100 - keeps links
        script, module, arguments = named_script(words, here)
        script = Path(os.path.abspath(script))  # noqa: PTH100
        survey = survey_with_modules(script, arguments)
        start = how_started(script, module, arguments, survey, here) if survey.is_python else None
        text, what = _text_for(script, arguments, survey, start, target, environment, said)
        said += _scripts_among(arguments, script)
        is_job = survey.kind is not ScriptKind.PLAIN
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("x", encoding="utf-8") as file:
        file.write(text)
    said += _complaints(target, environment)
    return "\n".join([f"wrote {target}: {what}", *said, *_next_commands(target, is_job)])


def _head(what: str, target: Path, environment: Mapping[str, str]) -> str:
    return _HEAD.format(what=what, socket=_socket(target.absolute().parent, environment))


def _socket(folder: Path, environment: Mapping[str, str]) -> str:
    """Where the daemon listens: beside the file, unless that path is too long for a socket."""
    beside = folder / ".stepkeeper" / "supervisor.sock"
    if len(os.fsencode(beside)) <= MAX_SOCKET_PATH_BYTES:
        return "%(here)s/.stepkeeper/supervisor.sock"
    number = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
    place = environment.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return f"{place.replace('%', '%%')}/stepkeeper-{os.geteuid()}-{number}.sock"


def _complaints(target: Path, environment: Mapping[str, str]) -> list[str]:
    """What the daemon would say of the new file: that of a long path, or of a folder that others can write."""
    try:
        checked = check_config(target, environment)
    except ConfigError as error:
        return [str(error)]
    return [str(problem) for problem in (*checked.problems, *checked.warnings)]


def _text_for(
    script: Path,
    arguments: Sequence[str],
    survey: ScriptSurvey,
    start: ScriptStart | None,
    target: Path,
    environment: Mapping[str, str],
    said: list[str],
) -> tuple[str, str]:
    name, is_job = _name(script), survey.kind is not ScriptKind.PLAIN
    directory = script.parent if start is None else start.directory
    python = find_interpreter(script, environment) if survey.is_python else None
    what = f"{'the training job' if is_job else 'the program'} {name!r}"
    reason = f"{script.name} uses {survey.kind}" if is_job else ""
    lines = [f"[program:{name}]"]
    if reason:
        lines.append(f"; {reason}, so it is a training job: it resumes from its newest whole checkpoint.")
    if survey.options:
        lines.append(f"; arguments that the script takes: {_one_line(' '.join(survey.options))}")
    if survey.kind is ScriptKind.TRAINING:
        module = script.stem if start is None or not start.module else start.module
        directory = directory if start is not None and start.module else script.parent
        lines += [f"entrypoint = {module}:{survey.function}", f"python = {_value(str(python))}"]
    else:
        command = _shell_command(script, survey, arguments) if start is None else [str(python), *start.words]
        lines.append(f"command = {' '.join(map(_word, command))}")
    lines.append(f"directory = {_place(directory, target.parent)}")
    if start is not None and start.modules:
        folders = ":".join(_place(folder, target.parent) for folder in start.modules)
        lines += ["; Modules that the script imports are there.", f'environment = PYTHONPATH="{folders}"']
    if is_job:
        kept = directory / survey.directory if survey.directory else target.parent / "checkpoints" / name
        lines += ["; Keep it on a disk that survives the host.", f"checkpoint_dir = {_place(kept, target.parent)}"]
    if survey.framework and not is_job:
        reason = (
            f"it imports {survey.framework} and not worker, so it is no training job; the file says how to make it one"
        )
    said += _remarks(script, survey, python, start)
    blocks = "".join(_blocks(survey)).replace("NAME", name)
    title = f"Configuration of supervisord for {_one_line(script.name)}, written by supervisord --init."
    head = _head(title, target, environment)
    return f"{head}\n" + "\n".join(lines) + f"\n{blocks}", what + (f": {reason}" if reason else "")


def _blocks(survey: ScriptSurvey) -> Iterator[str]:
    if survey.kind is ScriptKind.PLAIN:
        if survey.framework:
            text = _OWN_CHECKPOINTS if survey.resumes else _NO_JOB
            yield text.format(framework=survey.framework, resumes=survey.resumes)
        yield _PLAIN
        return
    if survey.uses_strategy:
        yield _STRATEGY
    yield _JOB
    if survey.kind in (ScriptKind.RUN, ScriptKind.KERAS, ScriptKind.TRAINING):
        yield _EXPORT


def _remarks(script: Path, survey: ScriptSurvey, python: Path | None, start: ScriptStart | None) -> Iterator[str]:
    """What the user has to do before it runs."""
    if survey.needed:
        needed = ", ".join(map(_one_line, survey.needed))
        yield f"the script requires {needed}: add it to 'command' in the file, before anything is started"
    if survey.magic_line is not None:
        yield (
            f"line {survey.magic_line} of {script.name} calls get_ipython(), as notebooks do: only IPython has that; "
            f"take such lines out before anything is started"
        )
    if python is None or start is None:
        return
    is_job = survey.kind is not ScriptKind.PLAIN
    if is_job and (start.directory / "worker.py").exists():
        yield f"{start.directory / 'worker.py'} hides stepkeeper's package of that name; rename it"
    elif (why := why_not_as_root(python, os.environ)) is not None:
        if is_job:
            command = install_stepkeeper(str(python))
            yield f"{python} is not run as root to see whether it has stepkeeper: {why}; if it has not: {command}"
    else:
        if is_job and python != Path(sys.executable) and not has_worker(python):
            yield missing_worker(python)
        wanted = [name for name in survey.imports if name not in (*sys.stdlib_module_names, "worker")]
        if missing := missing_packages(python, wanted, (start.directory, script.parent, *start.modules)):
            yield f"{python} lacks {', '.join(missing)}, which the script imports; install that there first"


def _scripts_among(arguments: Sequence[str], script: Path) -> Iterator[str]:
    """Says of the first argument that is a Python script itself what becomes of it: `--init *.py`."""
    if (other := next((word for word in arguments if word.endswith(".py") and Path(word).is_file()), None)) is not None:
        yield (
            f"{_one_line(other)} became an argument of {script.name}; supervisord -c FILE --init "
            f"{_one_line(shlex.quote(other))} writes a file for it, whose [program:...] can be copied here"
        )


def _shell_command(script: Path, survey: ScriptSurvey, arguments: Sequence[str]) -> list[str]:
    """A script that may not be executed is given to what its first line names, else to the shell."""
    runs_it = [] if os.access(script, os.X_OK) and survey.shebang else survey.shebang or ["/bin/sh"]
    return [*runs_it, str(script), *arguments]


def _name(script: Path) -> str:
    name = re.sub(r"[^\w-]+", "-", script.stem).strip("-")[: MAX_NAME_BYTES // 4]
    return name if name and name not in RESERVED else "job"


def _place(path: Path, folder: Path) -> str:
    """A folder as the file names it: from the file's own folder if it lies in that."""
    path = Path(os.path.abspath(path))  # noqa: PTH100 - keeps links
    if not path.is_relative_to(folder):
        return _value(str(path))
    below = path.relative_to(folder)
    return "%(here)s" + ("" if below == Path() else f"/{_value(str(below))}")


def _value(text: str) -> str:
    """A text as a value of the file."""
    if any(not character.isprintable() for character in text) or re.search(r"(^|\s)[;#]", text):
        raise ScriptError(
            f"cannot write {text!r} into a configuration file: it has a comment sign or control characters"
        )
    return text.replace("%", "%%")


def _word(text: str) -> str:
    """A word of a command, quoted if it has to be, with nothing in it that would begin a comment."""
    if any(not character.isprintable() for character in text):
        raise ScriptError(f"cannot write {text!r} into a configuration file: it has control characters; leave it out")
    quoted = shlex.quote(text).replace("%", "%%")
    return re.sub(r"(\s)([;#])", r"\1''\2", quoted)


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text).replace("%", "%%")[:200]


def _next_commands(target: Path, is_job: bool) -> list[str]:
    """The commands that follow, as they can be typed here. `is_job`: the file has a job, which can be proven."""
    first = next((candidate for candidate in candidates() if candidate.is_file()), None)
    option = "" if first is not None and first.absolute() == target.absolute() else f" -c {shlex.quote(str(target))}"
    typed = [f"{_typed('supervisord')}{option}", f"{_typed('supervisorctl')}{option} status --watch"]
    said = ["starts the daemon and what the file has", "shows it until Ctrl-C"]
    if is_job:
        typed.append(f"{_typed('supervisord')} --prove {shlex.quote(str(target))}")
        said.append("proves that a kill changes no bit")
    width = max(map(len, typed))
    return ["next:", *(f"  {command:<{width}}   # {does}" for command, does in zip(typed, said, strict=True))]


def _typed(command: str) -> str:
    """How this command of our own environment is called from here."""
    own = Path(sys.executable).parent / command
    path = shutil.which(command)
    if path is None and not own.exists():
        return command
    return command if path is not None and Path(path).absolute() == own.absolute() else shlex.quote(str(own))
