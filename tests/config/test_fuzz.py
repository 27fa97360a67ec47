"""Whatever stands in the file, the answer is a configuration or a ConfigError."""

import contextlib
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config import Config, ConfigError, load_config
from supervisor.config.keys.daemon import SupervisordConfig
from supervisor.config.keys.groups import ListenerConfig, ProcessesConfig
from supervisor.config.keys.job import JobConfig
from supervisor.config.keys.program import ProgramConfig
from supervisor.config.keys.server import CtlConfig, InetServerConfig, UnixServerConfig
from supervisor.config.load import NO_OVERRIDES
from supervisor.config.migration.outcomes import MigrationOutcome, explain_migration
from supervisor.config.options import COMMAND_LINE
from supervisor.ini.reader import IniKey
from tests.fuzzing import cases

KEYS = sorted(
    {*SupervisordConfig.ini_keys(), *UnixServerConfig.ini_keys(), *CtlConfig.ini_keys(), *ProgramConfig.ini_keys()}
    | {*JobConfig.ini_keys(), *ProcessesConfig.ini_keys(), "files", "programs", "nonsense"}
    | {*InetServerConfig.ini_keys(), *ListenerConfig.ini_keys()}
)

WORDS = ["1", "0", "-1", "true", "AUTO", "NONE", "%(here)s", "%(ENV_A)s", "%", "%%", "%(x)d", '"', "'", 'A="b"', "a:b"]
MORE = [
    "/dev/null",
    "~",
    "~nobody/x",
    "10 minutes",
    "5 steps",
    "9" * 30,
    "TERM",
    "50MB",
    "root",
    "root:root",
    "777",
    "..",
    "a,b",
    "%(program_name)s%(process_num)d",
    "3",
    "",
    "127.0.0.1:9001",
    "*:1",
    "EVENT",
    "PROCESS_STATE,TICK_5",
    "supervisor.dispatchers:default_handler",
]

values = st.lists(st.sampled_from(WORDS + MORE) | st.text(max_size=8), max_size=3).map(" ".join)
lines = st.tuples(st.sampled_from(KEYS) | st.text(max_size=6), values).map(" = ".join)
NAMES = ["supervisord", "unix_http_server", "supervisorctl", "include", "program:a", "program:b", "program:", "group:x"]
NAMES += [
    "inet_http_server",
    "inet_http_server:a",
    "unix_http_server:a",
    "eventlistener:l",
    "eventlistener:",
    "ctlplugin:c",
]
NAMES += ["fcgi-program:f", "rpcinterface:supervisor", "rpcinterface:r"]
names = st.sampled_from(NAMES) | st.text(max_size=8)
sections = st.tuples(names, st.lists(lines, max_size=8)).map(
    lambda section: "\n".join([f"[{section[0]}]", *section[1]])
)
files = st.lists(sections, max_size=5).map("\n".join)


def outcome(content: bytes, said: Mapping[str, IniKey] = NO_OVERRIDES) -> Config | ConfigError:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.conf"
        path.write_bytes(content)
        try:
            loaded: Config | ConfigError = load_config(path, {"A": "x"}, said)
        except ConfigError as error:
            assert error.problems
            assert "\n".join(map(str, error.problems[:50])) in str(error)
            loaded = error
        return loaded


@pytest.mark.slow
@pytest.mark.fuzz
@cases(300)
@given(files)
def test_any_text_loads_or_is_refused(text):
    outcome(text.encode(errors="surrogatepass"))


@pytest.mark.fuzz
@cases(100)
@given(files)
def test_migrate_refuses_a_line_of_what_can_not_be_loaded_and_none_of_what_can(text):
    loaded = outcome(text.encode(errors="replace"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.conf"
        path.write_bytes(text.encode(errors="replace"))
        try:
            refused = [
                migration
                for migration in explain_migration(path, {"A": "x"})
                if migration.outcome is MigrationOutcome.REFUSED
            ]
        except ConfigError:  # it is no text
            assert isinstance(loaded, ConfigError)
        else:
            assert bool(refused) is isinstance(loaded, ConfigError)


@pytest.mark.fuzz
@cases(200)
@given(st.binary(max_size=300))
def test_any_bytes_load_or_are_refused(content):
    outcome(content)


@pytest.mark.fuzz
@cases(300)
@given(st.sampled_from(sorted({*ProgramConfig.ini_keys(), *JobConfig.ini_keys()})), st.text(max_size=30))
def test_any_value_of_any_key_loads_or_is_refused(key, value):
    text = f"[supervisord]\n[program:x]\ncommand = x\ncheckpoint_dir = c\n{key} = {value}\n"
    with contextlib.suppress(UnicodeEncodeError):
        outcome(text.encode())


@pytest.mark.fuzz
@cases(150)
@given(
    st.dictionaries(st.sampled_from(sorted(SupervisordConfig.ini_keys())), values | st.text(max_size=12), max_size=4),
    st.lists(lines, max_size=3),
)
def test_any_command_line_loads_or_is_refused(said, written):
    with contextlib.suppress(UnicodeEncodeError):
        text = "\n".join(["[supervisord]", *written, "[program:x]", "command=x"]).encode()
        outcome(text, {key: IniKey(value, COMMAND_LINE, Path("/")) for key, value in said.items()})
