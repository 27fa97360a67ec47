"""The page of benchmarks gets the results of a bench, and keeps everything else."""

from pathlib import Path

import pytest

from bench.all_benches import difference, with_block


def block(name: str, text: str) -> str:
    return f"<!-- {name}: begin -->\n{text}\n<!-- {name}: end -->\n"


def test_a_second_result_takes_the_place_of_the_first() -> None:
    page = "# Page\n"
    for name, text in (("saves", "1 ms"), ("daemon", "2 ms"), ("saves", r"3 ms \1")):
        page = with_block(page, name, block(name, text))

    assert page == "# Page\n\n" + block("saves", r"3 ms \1") + "\n" + block("daemon", "2 ms")


def test_two_runs_are_compared_by_the_medians_of_their_series() -> None:
    one = {"machine": {"load": [1.0]}, "a": {"ms": [1.0, 2.0, 9.0]}, "b": [{"s": [10, 10]}], "names": ["x"]}
    other = {"machine": {"load": [9.0]}, "a": {"ms": [1.0, 1.0, 9.0]}, "b": [{"s": [9, 9]}], "names": ["y"]}

    assert difference(one, other) == "Of 2 medians in two runs, half differ by less than 30 %, the worst by 50 %."


@pytest.mark.thorough
def test_a_picture_shows_every_system_and_is_the_same_for_the_same_figures(tmp_path: Path) -> None:
    pictures = pytest.importorskip("bench.pictures", reason="matplotlib is not installed")
    run = {"seconds": {"stepkeeper": {"total": [1.0, 2.0]}, "<another>": {"total": [9.0]}}}

    drawn = [tmp_path / "1.svg", tmp_path / "2.svg"]
    assert [pictures.draw("relaunch", [run, run], path) for path in drawn] == [True, True]

    assert all(text in drawn[0].read_text() for text in ("stepkeeper", "&lt;another&gt;", "kill to the first new step"))
    assert drawn[0].read_text() == drawn[1].read_text()


@pytest.mark.thorough
def test_a_bench_without_a_picture_gets_none(tmp_path: Path) -> None:
    pictures = pytest.importorskip("bench.pictures", reason="matplotlib is not installed")

    assert not pictures.draw("shards", [{}], tmp_path / "1.svg")
    assert not list(tmp_path.iterdir())
