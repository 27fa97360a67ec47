"""The record of a proof: limits of what it may hold, and the fingerprint of a script."""

import pytest

from supervisor.protocol.proof import (
    MAX_DIFFERENCES,
    MAX_FILE_BYTES,
    MAX_FILES,
    Difference,
    KillPlace,
    ProofKill,
    ProofReport,
    Verdict,
    fingerprint,
    fit_report,
)
from supervisor.protocol.wire.codec import ProtocolError, decode_record, encode_record, parse_object


def report(**more: object) -> ProofReport:
    return ProofReport(Verdict.DIFFERENT, "digits", 1.7e9, 12.5, **more)  # type: ignore[arg-type]


def test_a_report_comes_back_as_it_was() -> None:
    whole = report(
        kills=(ProofKill(KillPlace.SAVE, 6, True, 3), ProofKill(KillPlace.STEP, 9)),
        differences=(Difference("metric loss", 41, "0x1p0", "0x1p1"),),
        files=("/srv/train.py",),
    )

    assert decode_record(parse_object(encode_record(whole)), ProofReport, "proof") == whole


def test_what_is_beyond_the_limits_is_refused_as_it_is_and_taken_once_it_is_cut() -> None:
    difference = Difference("m" * 5000, 1, "u" * 5000, "k" * 5000)
    large = report(
        differences=(difference,) * 1000,
        kills=(ProofKill(KillPlace.STEP, 1),) * 1000,
        reason="r" * 100_000,
        named=("n" * 9000,) * 999,
        files=("/f",) * 999,
    )

    with pytest.raises(ProtocolError):
        decode_record(parse_object(encode_record(large)), ProofReport, "proof")
    text = encode_record(fit_report(large))

    assert len(text) < 100_000
    fitted = decode_record(parse_object(text), ProofReport, "proof")
    assert (len(fitted.differences), len(fitted.files)) == (MAX_DIFFERENCES, MAX_FILES)
    assert len(fitted.differences[0].name) == 200


@pytest.mark.parametrize("field", ["steps", "took_s", "wall_at", "state_bytes"])
@pytest.mark.parametrize("value", ["-1", "1e400", "NaN", '"7"', "true", "1e300"])
def test_a_number_that_can_t_be_is_refused(field: str, value: str) -> None:
    text = encode_record(report(steps=1, state_bytes=1))
    body = {**parse_object(text), field: parse_object(f'{{"v": {value}}}')["v"]}

    with pytest.raises(ProtocolError):
        decode_record(body, ProofReport, "proof")


def test_a_fingerprint_tells_commands_and_files_apart() -> None:
    def of(command: tuple[str, ...], **files: bytes) -> str:
        return fingerprint(command, files, lambda name: files[name])

    prints = [
        of(("python", "a.py"), a=b"1"),
        of(("python", "b.py"), a=b"1"),
        of(("python", "a.py"), a=b"2"),
        of(("python", "a.py"), b=b"1"),
        of(("python", "a.py")),
        of(("python", "a.py"), a=b"1", b=b""),
        of(("python", "a.py"), a=b"1" + b"\0b\x000\0"),
    ]

    assert len(set(prints)) == len(prints)
    assert prints[0] == of(("python", "a.py"), a=b"1")


def test_a_fingerprint_reads_the_beginning_of_so_many_files_and_survives_those_that_are_gone() -> None:
    read: list[str] = []

    def give(name: str) -> bytes:
        read.append(name)
        if name == "gone":
            raise FileNotFoundError
        return b"x" * (MAX_FILE_BYTES + int(name))

    with_gone = fingerprint((), ("gone", "1"), give)

    assert with_gone == fingerprint((), ("1",), give) == fingerprint((), ("1",), lambda _: b"x" * MAX_FILE_BYTES)
    read.clear()
    fingerprint((), (str(number) for number in range(10 * MAX_FILES)), give)
    assert len(read) == MAX_FILES
