"""What a reload makes of the configuration that the check before it left."""

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor import __version__
from supervisor.config import Config, load_config
from supervisor.daemon import _read_checked
from supervisor.host.service.reloading import Reload


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "test.conf").write_text(
        "[supervisord]\n[inet_http_server]\nport=127.0.0.1:1\nusername=ann\npassword=secret\n"
        "[program:count]\ncommand=/bin/true\ncheckpoint_dir=c\nhook_failed=/bin/true\nuser=root\n"
        "[eventlistener:ears]\ncommand=/bin/true\nevents=TICK_5\n"
    )
    return load_config(tmp_path / "test.conf", {})


def test_it_is_used_as_it_was(config: Config):
    assert _read_checked(Reload([], pickle.dumps((__version__, config)))) == config


@pytest.mark.parametrize("how", ["missing", "cut off", "of another version", "something else"])
def test_where_it_is_of_no_use_the_files_are_read(how: str, config: Config):
    whole = pickle.dumps((__version__, config))
    left = {
        "missing": b"",
        "cut off": whole[:-100],
        "of another version": pickle.dumps(("0.0.1", config)),
        "something else": pickle.dumps((__version__, replace(config.supervisord))),
    }[how]

    assert _read_checked(Reload([], left)) is None
