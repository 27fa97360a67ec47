"""A configuration that others may write to is refused by root, since they could run anything as root."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from supervisor.config.load import load_config
from supervisor.ini.problems import ConfigError

TEXT = "[supervisord]\n[program:x]\ncommand = /bin/true\n"
INCLUDES = "[supervisord]\n[include]\nfiles = ../more/*.conf\n"
ALICE = 41001
pytestmark = [pytest.mark.hostile, pytest.mark.skipif(os.geteuid() != 0, reason="only root is asked for this")]


def written(folder: Path, text: str = TEXT) -> Path:
    folder.mkdir()
    path = folder / "supervisord.conf"
    path.write_text(text)
    path.chmod(0o644)
    return path


def refusal(path: Path, environment: Mapping[str, str] = {}) -> str:
    with pytest.raises(ConfigError) as refused:
        load_config(path, environment)
    return str(refused.value)


@pytest.mark.parametrize(("place", "mode"), [("file", 0o646), ("folder", 0o757), ("file", 0o664), ("folder", 0o775)])
def test_file_or_folder_that_others_may_write_is_refused_with_the_remedy(place: str, mode: int, tmp_path: Path) -> None:
    path = written(tmp_path / "etc")
    writable = path if place == "file" else path.parent
    os.chown(writable, 0, 5)
    writable.chmod(mode)

    text = refusal(path)

    assert "other users may write to it" in text
    assert f"(chmod go-w {writable})" in text


@pytest.mark.parametrize("place", ["file", "folder", "folder above"])
def test_what_belongs_to_another_user_is_refused_with_the_remedy(place: str, tmp_path: Path) -> None:
    (tmp_path / "above").mkdir()
    path = written(tmp_path / "above" / "etc")
    owned = {"file": path, "folder": path.parent, "folder above": path.parent.parent}[place]
    os.chown(owned, ALICE, 0)

    text = refusal(path)

    assert f"its owner, uid {ALICE}, may change it" in text
    assert f"(chown root {owned})" in text


def test_whoever_ran_sudo_may_keep_the_file_at_home(tmp_path: Path) -> None:
    path = written(tmp_path / "home")
    for owned in (path.parent, path):
        os.chown(owned, ALICE, 0)

    assert load_config(path, {"SUDO_UID": str(ALICE)}).programs.keys() == {"x"}
    assert f"uid {ALICE}" in refusal(path, {"SUDO_UID": str(ALICE + 1)})
    assert f"uid {ALICE}" in refusal(path, {"SUDO_UID": "9" * 30})


def test_a_folder_far_above_that_others_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    path = written(tmp_path / "open" / "etc")
    path.parent.parent.chmod(0o777)

    assert f"(chmod go-w {path.parent.parent})" in refusal(path)


def test_a_link_on_the_way_counts_as_a_folder_does(tmp_path: Path) -> None:
    path = written(tmp_path / "etc")
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "link").symlink_to(path.parent)
    linked = tmp_path / "open" / "link" / path.name
    assert load_config(linked, {}).programs.keys() == {"x"}

    os.chown(tmp_path / "open" / "link", ALICE, 0, follow_symlinks=False)
    assert f"(chown root {tmp_path / 'open' / 'link'})" in refusal(linked)
    os.chown(tmp_path / "open" / "link", 0, 0, follow_symlinks=False)
    (tmp_path / "open").chmod(0o777)
    assert f"(chmod go-w {tmp_path / 'open'})" in refusal(linked)


def test_included_file_is_looked_at_too(tmp_path: Path) -> None:
    path = written(tmp_path / "etc", INCLUDES)
    included = written(tmp_path / "more", "[program:x]\ncommand = /bin/true\n")
    included.chmod(0o666)

    assert f"chmod go-w {included})" in refusal(path)


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_a_folder_that_is_searched_is_refused_also_while_it_is_empty(mode: int, tmp_path: Path) -> None:
    path = written(tmp_path / "etc", INCLUDES)
    (tmp_path / "more").mkdir()
    (tmp_path / "more").chmod(mode)

    text = refusal(path)

    assert f"{path}:3: cannot run as root" in text
    assert f"more: other users may {'add files' if mode == 0o1777 else 'write'} to it" in text


def test_a_missing_folder_that_others_could_make_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "etc", INCLUDES.replace("../more", "../common/*/more"))
    (tmp_path / "common").mkdir()
    assert load_config(path, {}).programs == {}

    (tmp_path / "common").chmod(0o1777)
    assert f"(chmod go-w {tmp_path}/etc/../common)" in refusal(path) or f"{tmp_path}/common)" in refusal(path)


def test_file_that_only_root_may_write_is_fine(tmp_path: Path) -> None:
    path = written(tmp_path / "etc")
    path.parent.chmod(0o1777)  # sticky, as /tmp is: others can't replace it
    os.chown(path, 0, 0)
    path.chmod(0o664)  # the group is root's

    assert load_config(path, {}).programs.keys() == {"x"}
