"""Configuration files as they are written, and what is wrong with them."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from supervisor.config import Config, ConfigError, load_config
from supervisor.config.keys.program import ProgramConfig

DAEMON = "[supervisord]\n"


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A short path: that of a socket has at most 107 bytes, and pytest's own folders grow with its runs and workers."""
    with tempfile.TemporaryDirectory(prefix="sk", dir="/tmp") as made:
        yield Path(made)


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Config]:
    def of(text: str, environment: Mapping[str, str] | None = None) -> Config:
        path = tmp_path / "train.conf"
        path.write_text(text)
        return load_config(path, environment or {})

    return of


@pytest.fixture
def program(read: Callable[..., Config]) -> Callable[..., ProgramConfig]:
    """The one program of a file whose [program:x] section has these lines."""

    def of(*lines: str, environment: Mapping[str, str] | None = None) -> ProgramConfig:
        return read(DAEMON + "\n".join(["[program:x]", *lines]), environment).programs["x"]

    return of


@pytest.fixture
def complaints(read: Callable[..., Config], tmp_path: Path) -> Callable[..., list[str]]:
    """What is wrong with a file, without the folder's name."""

    def of(text: str, environment: Mapping[str, str] | None = None) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            read(text, environment)
        return [str(problem).removeprefix(f"{tmp_path}/") for problem in caught.value.problems]

    return of
