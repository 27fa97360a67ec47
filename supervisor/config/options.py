"""The command line of supervisord: Supervisor's options and our own, and what they say instead of the file."""

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from supervisor import __version__
from supervisor.ini.problems import ConfigError, Location, Problem
from supervisor.ini.reader import FILE_NAME, IniKey, find_config_file

COMMAND_LINE = Location(Path("command line"))

_EPILOG = (
    "Exit status: 0 after a shutdown, 2 if the command line is wrong, 70 if exit_on ended the daemon, 71 if a file, "
    "socket or limit that it needs is not available, 75 if another supervisord is running, 78 if the configuration is "
    "wrong, 143 after a shutdown with exit_on before everything was done. Signals: TERM, INT and QUIT save and stop "
    "all programs and exit (a second one: without waiting for checkpoints); PWR does the same within power_timeout; "
    "HUP reads the configuration and applies what has changed; USR2 reopens log files."
)

_VALUES = (
    ("-u", "user", "USER", "become this user (name or number); needs root"),
    ("-m", "umask", "UMASK", "umask of the daemon, in octal"),
    ("-d", "directory", "FOLDER", "change to this folder at the start"),
    ("-l", "logfile", "FILE", "the daemon's log file"),
    ("-y", "logfile_maxbytes", "BYTES", "size at which the log file is rotated"),
    ("-z", "logfile_backups", "NUMBER", "how many rotated log files are kept"),
    ("-e", "loglevel", "LEVEL", "lowest level that is logged: critical, error, warn, info or debug"),
    ("-j", "pidfile", "FILE", "file for the daemon's process id"),
    ("-i", "identifier", "NAME", "the daemon's name for Supervisor's clients"),
    ("-q", "childlogdir", "FOLDER", "folder for the logs of programs that configure none"),
    ("-a", "minfds", "NUMBER", "minimum limit of open files"),
    (None, "minprocs", "NUMBER", "minimum limit of processes"),
    (None, "engine", "ENGINE", "who owns the hosts: alone (nobody), slurm or jobset"),
)
"""Keys of [supervisord]: short option, key, what stands for the value, help."""

_PATHS = ("directory", "logfile", "pidfile", "childlogdir")

_SWITCHES = (
    ("-n", "nodaemon", "stay in the foreground"),
    ("-s", "silent", "in the foreground: do not log to standard error"),
    ("-k", "nocleanup", "accepted for Supervisor; log files are never deleted at the start"),
)

_REFUSED = {
    "-t": "in Supervisor that is strip_ansi; logs are kept as programs print them; take it out, and strip them when "
    "reading (to check the configuration and start nothing: --check-config)",
    "--strip_ansi": "logs are kept as programs print them; take it out, and strip them when reading",
    "--profile_options": "the daemon is not run under a profiler; take it out, and look at the running one, for "
    "example with py-spy",
}
"""Options of Supervisor's that nothing here stands for, and what to do instead."""


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options. Ends the process, with status 2, if they can't be understood, and with 0 after --help."""
    known = parser()
    if "_ARGCOMPLETE" in os.environ:  # set by the shell's completion
        import argcomplete

        argcomplete.autocomplete(known, always_complete_options=False)
    return known.parse_args(arguments)


def configuration_path(options: argparse.Namespace) -> Path:
    """The configuration file, by its full path: the one that was named, or found. Raises ConfigError."""
    named: Path = options.configuration or find_config_file()
    return named if named.is_absolute() else _present_folder() / named


def overridden_keys(options: argparse.Namespace) -> Mapping[str, IniKey]:
    """What the options say of [supervisord] instead of the file; relative paths start from the present folder.

    Raises ConfigError.
    """
    values = {
        key: getattr(options, key) for key in (*(value[1] for value in _VALUES), *(switch[1] for switch in _SWITCHES))
    }
    texts = {key: "true" if value is True else value for key, value in values.items() if value is not None}
    is_needed = any(_is_relative(texts[key]) for key in _PATHS if key in texts)
    here = _present_folder() if is_needed else Path("/")
    # a percent sign is one: only the file has placeholders
    return {key: IniKey(text.replace("%", "%%"), COMMAND_LINE, here) for key, text in texts.items()}


def _is_relative(text: str) -> bool:
    return not text.startswith(("/", "~")) and text.upper() not in ("NONE", "SYSLOG")


def _present_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        text = "the present folder was deleted, and a relative path starts there; write full paths, or go elsewhere"
        raise ConfigError([Problem(COMMAND_LINE, text)]) from error


def starter_path(options: argparse.Namespace) -> Path:
    """Where --init writes, by its full path. Raises ConfigError."""
    named: Path = options.configuration or Path(FILE_NAME)
    return named if named.is_absolute() else _present_folder() / named


class _UnsupportedOption(argparse.Action):
    """Ends with what to do instead."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> NoReturn:
        parser.error(f"stepkeeper has no {option}: {_REFUSED[option or self.option_strings[0]]}")


def parser() -> argparse.ArgumentParser:
    """The parser of the options."""
    options = argparse.ArgumentParser(
        prog="supervisord",
        description="Keeps training jobs and other programs running; supervisorctl controls it. Supervisor's options "
        "keep their meaning, and override the configuration file.",
        epilog=_EPILOG,
        add_help=False,
    )
    add = options.add_argument
    add("-h", "-?", "--help", action="help", help="show this help and exit")
    add("-v", "--version", action="version", version=__version__, help="show the version and exit")
    add(
        "-c",
        "--configuration",
        type=Path,
        metavar="FILE",
        help="configuration file (default: searched for as Supervisor does)",
    )
    for short, key, help_text in _SWITCHES:
        add(short, f"--{key}", action="store_true", default=None, help=help_text)
    for short_or_none, key, metavar, help_text in _VALUES:
        add(*filter(None, (short_or_none, f"--{key}")), metavar=metavar, help=help_text)
    add("-t", "--strip_ansi", action=_UnsupportedOption, nargs=0, help=argparse.SUPPRESS)
    add("--profile_options", action=_UnsupportedOption, nargs="?", help=argparse.SUPPRESS)
    _add_one_shot_options(options)
    return options


def _add_one_shot_options(options: argparse.ArgumentParser) -> None:
    """What it does, and exits, instead of running programs."""
    add = options.add_argument
    add("--check-config", action="store_true", help="check the configuration, show every problem, and exit")
    add(
        "--migrate",
        type=Path,
        metavar="FILE",
        help="show what each line of Supervisor's FILE means here, and exit",
    )
    add(
        "-o",
        "--output",
        type=Path,
        metavar="NEW",
        help="with --migrate: write NEW, the same file with what can't be used here as comments; overwrites nothing",
    )
    add(
        "--init",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT [ARGUMENT ...]",
        help="look at SCRIPT (or -m MODULE) and write a commented configuration file that runs it with these arguments "
        "(without a script: a file without programs) to ./supervisord.conf, or to the FILE of a -c before it; "
        "overwrites nothing",
    )
    add(
        "--prove",
        nargs=argparse.REMAINDER,
        metavar="FILE [JOB] [OPTION ...]",
        help="prove on the job of FILE that a killed training ends bit for bit as an undisturbed one, and exit; the "
        "options are those of python -m worker.prove (docs/proof.md)",
    )
    add("--hash-password", action="store_true", help="read a password, print its hash for the configuration, and exit")
