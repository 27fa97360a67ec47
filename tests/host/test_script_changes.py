"""Whether scripts are what a proof has run: seen, at little cost, and without being led elsewhere."""

import asyncio
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.host.script_changes import ScriptChanges, read_script
from supervisor.protocol.proof import ProofReport, Verdict, fingerprint
from tests.system.harness import let_others_in

COMMAND = ("python", "train.py")
WITHIN_S = 20.0


def proof_of(*files: Path, command: tuple[str, ...] = COMMAND) -> ProofReport:
    names = tuple(map(str, files))
    return ProofReport(Verdict.EXACT, "digits", 1.0, 1.0, script=fingerprint(command, names, read_script), files=names)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("one")
    return tmp_path / "train.py"


def write(script: Path, text: str | None) -> None:
    """Gives it that content; None: removes it."""
    script.unlink() if text is None else script.write_text(text)


async def looked(scripts: ScriptChanges, proof: ProofReport, command: tuple[str, ...] = COMMAND) -> bool | None:
    await scripts.look({"digits": (command, proof)}, WITHIN_S)
    return scripts.has_changed("digits", proof)


async def test_each_kind_of_change_is_seen_and_can_be_taken_back(script: Path) -> None:
    scripts, proof = ScriptChanges(look_every_s=0.0), proof_of(script)
    assert scripts.has_changed("digits", proof) is None
    assert await looked(scripts, proof) is False

    write(script, "two")
    assert await looked(scripts, proof) is True
    write(script, "one")
    assert await looked(scripts, proof) is False
    write(script, None)
    assert await looked(scripts, proof) is True
    write(script, "one")
    assert await looked(scripts, proof, ("python", "train.py", "--fast")) is True
    assert await looked(scripts, proof) is False
    assert await looked(scripts, replace(proof, files=())) is True


async def test_a_file_that_stays_is_read_once(script: Path) -> None:
    proof, reads = proof_of(script), list[str]()

    def read(name: str) -> bytes:
        reads.append(name)
        return read_script(name)

    scripts = ScriptChanges(0.0, read)
    for _ in range(5):
        await looked(scripts, proof)
    assert len(reads) == 1
    os.utime(script, (1, 1))
    assert await looked(scripts, proof) is False
    assert len(reads) == 2


async def test_it_is_not_looked_at_more_often_than_every_so_often(script: Path) -> None:
    scripts, proof = ScriptChanges(look_every_s=1000.0), proof_of(script)
    assert await looked(scripts, proof) is False

    write(script, "two")

    assert await looked(scripts, proof) is False


async def test_a_disk_that_hangs_holds_up_nobody_else(script: Path) -> None:
    answers = threading.Event()

    def read(name: str) -> bytes:
        if name.endswith("hangs.py"):
            answers.wait(WITHIN_S)
        return read_script(name)

    write(script.parent / "hangs.py", "one")
    hanging, proof, scripts = proof_of(script.parent / "hangs.py"), proof_of(script), ScriptChanges(0.0, read)
    began = asyncio.get_running_loop().time()
    await scripts.look({"hangs": (COMMAND, hanging), "digits": (COMMAND, proof)}, 0.5)

    assert asyncio.get_running_loop().time() - began < 5.0
    assert scripts.has_changed("digits", proof) is False
    assert scripts.has_changed("hangs", hanging) is None
    answers.set()
    await scripts.look({}, WITHIN_S)
    assert scripts.has_changed("hangs", hanging) is False


@pytest.mark.hostile
@pytest.mark.parametrize(
    "name", ["/dev/zero", "/dev/zero.py", "a\0b.py", "", "/proc/kmsg", "x" * 4000 + ".py", "relative.py", "/"]
)
async def test_names_that_mean_no_script_are_not_read(name: str) -> None:
    scripts = ScriptChanges()
    proof = ProofReport(Verdict.EXACT, "digits", 1.0, 1.0, script="0123", files=(name,))

    assert await looked(scripts, proof) is True


@pytest.mark.hostile
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has something to lose")
def test_as_root_no_link_pipe_or_device_of_a_user_is_read(tmp_path: Path) -> None:
    let_others_in(tmp_path)
    home, secret = tmp_path / "home", tmp_path / "secret"
    home.mkdir()
    os.chown(home, 65534, 65534)
    secret.write_text("top secret")
    secret.chmod(0o600)
    (home / "link.py").symlink_to(secret)
    os.lchown(home / "link.py", 65534, 65534)
    os.mkfifo(home / "pipe.py")
    os.chown(home / "pipe.py", 65534, 65534)
    (home / "own.py").write_text("mine")
    os.chown(home / "own.py", 65534, 65534)

    for name in ("link.py", "pipe.py", "/"):
        with pytest.raises(OSError, match=r"."):
            read_script(str(home / name))
    assert read_script(str(home / "own.py")) == b"mine"
