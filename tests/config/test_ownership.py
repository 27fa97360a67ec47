"""A configuration that others may write to is refused by root, since they could run anything as root."""

import os
from pathlib import Path

import pytest

from supervisor.config.load import load_config
from supervisor.ini.problems import ConfigError

TEXT = "[supervisord]\n[program:x]\ncommand = /bin/true\n"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root is asked for this")


def written(folder: Path, text: str = TEXT) -> Path:
    folder.mkdir()
    path = folder / "supervisord.conf"
    path.write_text(text)
    path.chmod(0o644)
    return path


@pytest.mark.parametrize(("place", "mode"), [("file", 0o646), ("folder", 0o757), ("file", 0o664), ("folder", 0o775)])
def test_file_or_folder_that_others_may_write_is_refused_with_the_remedy(place: str, mode: int, tmp_path: Path) -> None:
    path = written(tmp_path / "etc")
    writable = path if place == "file" else path.parent
    os.chown(writable, 0, 5)
    writable.chmod(mode)

    with pytest.raises(ConfigError, match=f"other users may write to it.*chmod go-w {writable}\\)"):
        load_config(path, {})


def test_included_file_is_looked_at_too(tmp_path: Path) -> None:
    path = written(tmp_path / "etc", "[supervisord]\n[include]\nfiles = ../more/*.conf\n")
    included = written(tmp_path / "more", "[program:x]\ncommand = /bin/true\n")
    included.chmod(0o666)

    with pytest.raises(ConfigError, match=f"chmod go-w {included}\\)"):
        load_config(path, {})


def test_file_that_only_root_or_its_owner_may_write_is_fine(tmp_path: Path) -> None:
    path = written(tmp_path / "etc")
    path.parent.chmod(0o1777)  # sticky, as /tmp is
    os.chown(path, 5, 0)
    path.chmod(0o664)  # the group is root's

    assert load_config(path, {}).programs.keys() == {"x"}
