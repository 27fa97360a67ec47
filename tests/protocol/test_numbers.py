"""Numbers from outside: what is one, and what is refused without an exception of Python's."""

import pytest

from supervisor.protocol.numbers import MAX_WHOLE, duration_s, real_number, whole_number

NO_NUMBERS = [
    "",
    " ",
    "nan",
    "inf",
    "-inf",
    "Infinity",
    "1e400",
    "9" * 5000,
    "٣",
    "²",
    "1__0",
    "_1",
    "1_",
    "0x10",
    "1 0",
    "½",
]


@pytest.mark.parametrize(
    ("text", "number"), [("7", 7), (" 7\n", 7), ("+7", 7), ("1_000", 1000), (str(MAX_WHOLE), MAX_WHOLE)]
)
def test_whole_numbers(text: str, number: int) -> None:
    assert whole_number(text) == number


@pytest.mark.parametrize("text", [*NO_NUMBERS, "-1", "1.5", "1e3", str(MAX_WHOLE + 1)])
def test_what_is_no_whole_number(text: str) -> None:
    assert whole_number(text) is None


@pytest.mark.parametrize(("text", "number"), [("7", 7.0), ("1.25", 1.25), (".5", 0.5), ("1.", 1.0), ("2e1", 20.0)])
def test_numbers(text: str, number: float) -> None:
    assert real_number(text, 0, 100) == number


@pytest.mark.parametrize("text", [*NO_NUMBERS, "-1", "101", "1.5.2", "."])
def test_what_is_no_number(text: str) -> None:
    assert real_number(text, 0, 100) is None


@pytest.mark.parametrize("text", [*NO_NUMBERS, "-1", "5 lightyears", "1e3", "367 days", "1000000 hours"])
def test_what_is_no_length_of_time(text: str) -> None:
    with pytest.raises(ValueError, match=r"^is '"):
        duration_s(text)
