"""depends_on: what it may name."""

from pathlib import Path

import pytest

from supervisor.config import ConfigError, load_config


def loaded(folder: Path, **depends_on: str):
    sections = "".join(
        f"[program:{name}]\ncommand=/bin/true\n" + (f"depends_on={needs}\n" if needs else "")
        for name, needs in depends_on.items()
    )
    path = folder / "test.conf"
    path.write_text("[supervisord]\n" + sections)
    return load_config(path, {})


def problems(folder: Path, **depends_on: str) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(folder, **depends_on)
    return str(caught.value)


def test_depends_on_is_a_list_of_names(tmp_path: Path):
    assert loaded(tmp_path, a="", b="", c="a, b").programs["c"].depends_on == ("a", "b")


def test_an_unknown_name_is_an_error_with_the_nearest_one(tmp_path: Path):
    said = problems(tmp_path, database="", web="databse")

    assert "test.conf:6: [program:web] depends_on names 'databse'" in said and "did you mean 'database'?" in said


@pytest.mark.parametrize("ring", [{"a": "a"}, {"a": "b", "b": "c", "c": "a", "d": "c"}])
def test_a_ring_is_an_error_that_shows_it(tmp_path: Path, ring: dict[str, str]):
    said = problems(tmp_path, **ring)

    assert "depends_on makes a cycle: " in said and " needs " in said
