"""The configuration as it was last read: what it would change of the programs in use. `updating.py` applies it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import structlog

from supervisor.config import Config, ConfigError, ProgramConfig
from supervisor.config.broken_sections import BrokenSection, keep_commands, leave_out_broken
from supervisor.config.load import SectionsBroken
from supervisor.config.several_nodes import training_nodes
from supervisor.ini.problems import Location, Problem
from supervisor.protocol.allocation import AllocationError
from supervisor.runner.attempt.services import Services
from supervisor.runner.program.runner import Runner

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Changes:
    """What a new configuration would change, by program name, and the sections that can't be loaded.

    `remarks`: what is to be said of the file, and was not said before. `not_applied`: why the last update did not apply
    changes of these programs.
    """

    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    broken: tuple[BrokenSection, ...] = ()
    remarks: tuple[str, ...] = ()
    not_applied: Mapping[str, str] = field(default_factory=dict)


class ConfigurationReader:
    """Begins with `config`, which the programs in use (`runners`) were made of.

    `read` gives the configuration file's present content; it raises ConfigError.
    """

    def __init__(
        self, config: Config, read: Callable[[], Config], services: Services, runners: Mapping[str, Runner]
    ) -> None:
        self.started_with = config
        """What the daemon's own sections have said since its start, whatever was read since."""
        self.last_read = config
        self._warnings = config.warnings  # the start logs them
        self._read = read
        self._services = services
        self._runners = runners

    @property
    def programs(self) -> Mapping[str, ProgramConfig]:
        """Those that were last read, whether in use or not."""
        return self.last_read.programs

    @property
    def remarks(self) -> tuple[str, ...]:
        """All that is to be said of what was last read, in the order of its lines."""
        return tuple(map(str, self._warnings))

    def changes(self) -> Changes:
        """What would change if it was applied now."""
        used, configured = self._runners, self.programs
        return Changes(
            added=tuple(sorted(configured.keys() - used.keys())),
            changed=tuple(
                sorted(name for name in configured.keys() & used.keys() if configured[name] != used[name].config)
            ),
            removed=tuple(sorted(used.keys() - configured.keys())),
            not_applied={name: runner.not_applied for name, runner in used.items() if runner.not_applied is not None},
        )

    async def reread(self, *, is_whole: bool = False) -> Changes:
        """Reads the file and says what is different; no program is touched. Raises ConfigError.

        Sections of programs that can't be loaded are left out, unless it has to be whole. What is to be said of the
        file, and was not before, is logged, too.
        """
        config, broken = await self._read_loadable(is_whole)
        if (gang := self._services.gang) is not None:
            try:
                training_nodes(config, gang.nodes)
            except AllocationError as error:
                raise ConfigError([Problem(Location(config.path), str(error))]) from error
        self.last_read = config
        known = frozenset(self._warnings)
        remarks = tuple(str(warning) for warning in config.warnings if warning not in known)
        for text in remarks:
            log.warning("configuration.remark", text=text)
        self._warnings = config.warnings
        for name, runner in self._runners.items():
            if config.programs.get(name) == runner.config:
                runner.not_applied = None
        return replace(self.changes(), broken=broken, remarks=remarks)

    async def _read_loadable(self, is_whole: bool) -> tuple[Config, tuple[BrokenSection, ...]]:
        """The file's content without the sections that can't be loaded, and those; raises ConfigError if it has to be
        whole."""
        broken: tuple[BrokenSection, ...] = ()
        in_use = {name: runner.config for name, runner in self._runners.items()}
        try:
            config = await self._services.blocking_calls.run(None, self._read)  # its disk may be away
        except SectionsBroken as error:
            if is_whole:
                raise
            config, broken = await self._services.blocking_calls.run(None, leave_out_broken, error, in_use)
            log.error(
                "configuration.partly_refused", error=str(error), sections=[section.section for section in broken]
            )
        config, problems, without_command = keep_commands(config, in_use)
        if problems and is_whole:
            raise ConfigError(problems)
        return config, broken + without_command
