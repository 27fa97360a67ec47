"""Options with which `supervisord` does one thing and exits: `--check-config`, `--migrate`, `--init` and others."""

import getpass
import os
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

from supervisor import early_interrupt
from supervisor.config import Config, ConfigError, options
from supervisor.config.migration.outcomes import MigrationOutcome, explain_migration
from supervisor.config.schema.secret import hash_password
from supervisor.host.processes.credentials import become_user
from supervisor.preflight import daemon_obstacles, program_remarks
from supervisor.protocol.plurals import counted

EXIT_CONFIG = 78  # EX_CONFIG: systemd must not try the same configuration again
EXIT_CANNOT_RUN = 71  # EX_OSERR: a folder, file or socket that the daemon needs is not available


def run_one_shot(parsed: Namespace) -> int | None:
    """Does what the options ask for besides a configuration that is read; returns the exit status.

    None if they ask for nothing of that kind.
    """
    if parsed.hash_password:
        return _hash_password()
    if parsed.migrate is not None:
        return _migrate(parsed.migrate) if parsed.output is None else _write_migrated(parsed.migrate, parsed.output)
    if parsed.output is not None:
        options.parser().error("--output goes with --migrate: supervisord --migrate FILE --output NEW")
    if parsed.prove is not None:
        return _prove(parsed.prove)
    if parsed.init is not None:
        return _init(parsed.init, parsed)
    return None


def check(config: Config) -> int:
    """Prints what `--check-config` finds in a configuration that can be read; gives the exit status of the start."""
    obstacles = daemon_obstacles(config)
    valid = f"{config.path}: valid, {counted(len(config.programs), 'program')}"
    taken = [_inherited(section, values) for section, values in config.inherited.items()]
    remarks = [*config.warnings, *program_remarks(config, os.environ)]
    print(*taken, *remarks, *([] if obstacles else [valid]), sep="\n")  # noqa: T201
    return fail("\n".join(obstacles), EXIT_CANNOT_RUN) if obstacles else 0


def _inherited(section: str, values: Mapping[str, str]) -> str:
    """What a section takes from [program-defaults]; variables may be secret."""
    shown = [key if key == "environment" else f"{key} = {value}" for key, value in values.items()]
    return f"[{section}] takes from [program-defaults]: {', '.join(shown) or 'nothing'}"


def _migrate(path: Path) -> int:
    """Prints what becomes of a configuration file that was written for Supervisor."""
    try:
        lines = explain_migration(path, os.environ)
    except ConfigError as error:
        return fail(str(error), EXIT_CONFIG)
    print(*lines, sep="\n")  # noqa: T201
    refused = sum(line.outcome is MigrationOutcome.REFUSED for line in lines)
    to_change = f"change {counted(refused, 'line')} before stepkeeper can use it"
    print(f"{path}: {to_change if refused else 'can be used as it is'}")  # noqa: T201
    return EXIT_CONFIG if refused else 0


def _write_migrated(source: Path, target: Path) -> int:
    """Writes a copy of a configuration file for Supervisor that can be used here."""
    from supervisor.config.migration.migrated_file import (  # only here: a daemon has no use for it
        CannotMigrate,
        write_migrated,
    )

    try:
        left_out = write_migrated(source, target, os.environ)
    except FileExistsError:
        return fail(f"cannot write {target}: it exists already; name another one, or move it away", EXIT_CANNOT_RUN)
    except (CannotMigrate, ConfigError) as error:
        return fail(str(error), EXIT_CONFIG)
    except OSError as error:
        return fail(f"cannot write {target}: {error.strerror}: {error.filename}; name another place", EXIT_CANNOT_RUN)
    print(*(f"left out: {line}" for line in left_out), f"{target}: can be used as it is", sep="\n")  # noqa: T201
    return 0


def _prove(words: list[str]) -> int:
    """Proves on a job of a configuration file that a killed training ends as an undisturbed one."""
    early_interrupt.begin()
    try:
        from supervisor.prove import command  # only here: a daemon has no use for it

        if not words or words[0].startswith("-"):
            text = "cannot prove anything: name the configuration file first, as in supervisord --prove FILE JOB"
            return fail(text, 64)
        return command.main(["-c", *words], "supervisord --prove", become_user)
    finally:
        early_interrupt.end()


def _init(words: list[str], parsed: Namespace) -> int:
    """Writes a first configuration file."""
    from supervisor.config.first_file.script_survey import ScriptError  # only here: a daemon has no use for them
    from supervisor.config.first_file.starter import write_starter

    if words and words[0] in ("-h", "--help"):  # its words are the script's, so argparse leaves them alone
        options.parser().print_help()
        return 0
    try:
        target = options.starter_path(parsed)
        said = write_starter(words, target, os.environ)
    except FileExistsError:
        remedy = "name another one (supervisord -c FILE --init ...), or move that one away"
        return fail(f"cannot write {target}: it exists already; {remedy}", EXIT_CANNOT_RUN)
    except OSError as error:
        remedy = "name another place: supervisord -c FILE --init ..."
        return fail(f"cannot write {error.filename}: {error.strerror}; {remedy}", EXIT_CANNOT_RUN)
    except (ScriptError, ConfigError) as error:
        return fail(str(error), EXIT_CONFIG)
    print(said)  # noqa: T201
    return 0


def _hash_password() -> int:
    is_typed = sys.stdin.isatty()
    password = getpass.getpass("Password: ") if is_typed else sys.stdin.readline().rstrip("\n")
    if not password:
        return fail("the password is empty; try again", 1)
    if is_typed and getpass.getpass("Again: ") != password:
        return fail("the passwords differ; try again", 1)
    try:
        print(hash_password(password))  # noqa: T201
    except UnicodeEncodeError:
        return fail("the password is not UTF-8, in which clients send it; write it in UTF-8", 1)
    return 0


def fail(text: str, status: int) -> int:
    """Prints why it fails; gives the exit status back."""
    print(text, file=sys.stderr)  # noqa: T201 - there may be no log yet
    return status
