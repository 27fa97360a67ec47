"""Words of a closed set: one parser for all keys that have them."""

from typing import Literal

import pytest

from supervisor.config.keys.job import JobConfig
from supervisor.config.schema.words import one_of
from supervisor.core.program.facts import AutoRestart, OnOom
from supervisor.core.standby.facts import StandbyKind

JOB = {"checkpoint_dir": "/c"}


@pytest.mark.parametrize("kind", [OnOom, Literal["restart", "microbatch"]], ids=["enumeration", "literal"])
def test_words_may_be_in_capitals(kind: object):
    assert one_of(kind)("MicroBatch") == "microbatch"


def test_a_word_of_an_enumeration_becomes_its_member():
    assert JobConfig.build(JOB | {"on_oom": "microbatch"}).on_oom is OnOom.MICROBATCH


@pytest.mark.parametrize("text", ["false", "None", "off"])
def test_a_word_may_be_written_in_other_ways(text: str):
    assert JobConfig.build(JOB | {"standby": text}).standby is StandbyKind.OFF


@pytest.mark.parametrize(("text", "word"), [("YES", AutoRestart.ALWAYS), ("0", AutoRestart.NEVER)])
def test_a_boolean_says_whether_to_restart(program, text: str, word: AutoRestart):
    assert program("command = x", f"autorestart = {text}").autorestart is word


def test_an_unknown_word_is_refused_with_all_known_ones():
    with pytest.raises(ValueError, match=r"^is 'rollbck'; it can be stop or rollback; did you mean 'rollback'[?]$"):
        one_of(Literal["stop", "rollback"])("rollbck")
