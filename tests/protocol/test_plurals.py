"""Numbers in sentences for people."""

import pytest

from supervisor.protocol.plurals import counted, counted_bytes, listed


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 programs"), (1, "1 program"), (2, "2 programs"), (11, "11 programs")]
)
def test_count_of_one_is_singular(number: int, words: str):
    assert counted(number, "program") == words


def test_plural_may_be_another_word():
    assert [counted(count, "process", "processes") for count in (1, 2)] == ["1 process", "2 processes"]


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1023 bytes"),
        (1024, "1.0 KB"),
        ((1 << 20) - 1, "1024.0 KB"),
        (1 << 20, "1.0 MB"),
        (700 << 20, "700.0 MB"),
        (3 << 50, "3072.0 TB"),
    ],
)
def test_units_of_bytes_are_those_of_the_configuration(count: int, words: str):
    assert counted_bytes(count) == words


def test_a_long_list_is_cut_and_counted():
    assert listed(["a", "b"]) == "a; b"
    assert listed([str(number) for number in range(5000)], at_most=2) == "0; 1; and 4998 more"
    assert len(listed(["x" * 100_000] * 5000)) < 3000
