"""Whatever stands in the file, the answer is a configuration or a ConfigError."""

import contextlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config import Config, ConfigError, load
from supervisor.config.daemon_keys import SupervisordConfig
from supervisor.config.job_keys import JobConfig
from supervisor.config.program_keys import ProcessesConfig, ProgramConfig
from supervisor.config.server_keys import CtlConfig, UnixServerConfig
from tests.fuzzing import cases

KEYS = sorted(
    {*SupervisordConfig.ini_keys(), *UnixServerConfig.ini_keys(), *CtlConfig.ini_keys(), *ProgramConfig.ini_keys()}
    | {*JobConfig.ini_keys(), *ProcessesConfig.ini_keys(), "files", "programs", "nonsense"}
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
]

values = st.lists(st.sampled_from(WORDS + MORE) | st.text(max_size=8), max_size=3).map(" ".join)
lines = st.tuples(st.sampled_from(KEYS) | st.text(max_size=6), values).map(" = ".join)
NAMES = ["supervisord", "unix_http_server", "supervisorctl", "include", "program:a", "program:b", "program:", "group:x"]
names = st.sampled_from(NAMES) | st.text(max_size=8)
sections = st.tuples(names, st.lists(lines, max_size=8)).map(lambda each: "\n".join([f"[{each[0]}]", *each[1]]))
files = st.lists(sections, max_size=5).map("\n".join)


def outcome(content: bytes) -> Config | ConfigError:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.conf"
        path.write_bytes(content)
        try:
            return load(path, {"A": "x"})
        except ConfigError as error:
            assert error.problems
            assert "\n".join(map(str, error.problems[:50])) in str(error)
            return error


@pytest.mark.fuzz
@cases(300)
@given(files)
def test_any_text_loads_or_is_refused(text):
    outcome(text.encode(errors="surrogatepass"))


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
