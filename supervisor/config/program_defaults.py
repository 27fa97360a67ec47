"""The section [program-defaults]: keys that hold for every [program:NAME] that does not set them itself."""

from collections.abc import Iterable, Mapping

from supervisor.config import supervisor_keys
from supervisor.config.keys.groups import ProcessesConfig
from supervisor.config.keys.job import JobConfig
from supervisor.config.keys.program import ProgramConfig
from supervisor.config.schema.check import SectionReader
from supervisor.config.schema.section import SectionError
from supervisor.ini.placeholders import program_placeholders
from supervisor.ini.reader import IniKey, IniSection

SECTION = "program-defaults"

OWN = frozenset({"command", "entrypoint", "python", "checkpoint_dir", "depends_on", *ProcessesConfig.ini_keys()})
"""Keys that say what one program is: a common value would make several programs one, or jobs of all."""

_NEEDS = {
    "notify_timeout": "notify",
    "healthcheck_interval": "healthcheck_command",
    "healthcheck_timeout": "healthcheck_command",
    "healthcheck_retries": "healthcheck_command",
}
"""Keys that mean nothing without another one: a default of theirs holds where that is set."""


def read_defaults(reader: SectionReader, placeholders: Mapping[str, str]) -> dict[str, IniKey]:
    """The keys of the section that can be used; the others are added to the reader's problems."""
    keys = {*ProgramConfig.ini_keys(), *JobConfig.ini_keys()} - OWN
    for key in sorted(OWN & reader.ini.entries.keys()):
        text = f"{key} can't be a default, as it says what one program is; write it into [program:NAME]"
        reader.add_problem(text, key)
    reader.report_unknown_keys(keys | OWN, supervisor_keys.PROGRAM)
    reader.expand_values(keys, {**placeholders, **program_placeholders("NAME", "NAME", 0, 1)})
    folders = {key: entry.folder for key, entry in reader.ini.entries.items()}
    for model in (ProgramConfig, JobConfig):
        texts = {key: text for key, text in reader.texts.items() if key in model.ini_keys()}
        # AUTO and syslog are words for where a path stands; the program that takes them over reads them
        words = {key for key in texts if key.endswith("_logfile")}
        try:
            model.build({key: text for key, text in texts.items() if key not in words}, folders)
        except SectionError as error:
            for key, text in error.problems:
                if key in texts:
                    reader.add_problem(text, key)
    return {key: ini_key for key, ini_key in reader.ini.entries.items() if key in keys and key not in reader.bad_keys}


def apply_defaults(section: IniSection, defaults: Mapping[str, IniKey]) -> dict[str, str]:
    """Adds the defaults to a program's section where it says nothing; gives the values that it takes over.

    Variables of `environment` are joined: those of the program itself win.
    """
    own = section.entries.keys() | defaults.keys()
    taken: dict[str, str] = {}
    for key, entry in defaults.items():
        if not _fits(key, section, own):
            continue
        if key not in section.entries:
            section.entries[key] = entry
            taken[key] = entry.value
        elif key == "environment" and entry.value:
            written = section.entries[key]
            joined = ",".join(filter(None, (entry.value.rstrip().rstrip(","), written.value)))
            section.entries[key] = IniKey(joined, written.location, written.folder)
            taken[key] = entry.value
    return taken


def _fits(key: str, section: IniSection, own: Iterable[str]) -> bool:
    """Whether a default means anything for this program."""
    is_job = "checkpoint_dir" in section.entries
    if key in JobConfig.ini_keys():
        return is_job
    if is_job and key in ("notify", "notify_timeout"):
        return False  # a job is ready when it trains
    return key not in _NEEDS or _NEEDS[key] in own
