"""The claim that counts, with TensorFlow: a power-off in mid-training does not change one bit of the weights.

The interpreter that runs these tests is shown to the guest with all its packages.
"""

import sys
from pathlib import Path

from tests.systemd.guest import Guest, until
from tests.systemd.scenarios import CHECKPOINTS, CONF

ENVIRONMENT = "/environment"  # in the guest
LAST_STEP = 1500  # examples/digits.py
PATIENCE_S = 300.0  # TensorFlow's import and tracing alone may take a minute on a busy machine


def shown() -> dict[str, Path]:
    """What the guest must see, by where: an environment works anywhere, the interpreter it is of at its own place."""
    return {ENVIRONMENT: Path(sys.prefix).resolve(), sys.base_prefix: Path(sys.base_prefix)}


def weights_after_a_poweroff_are_bit_equal(guest: Guest) -> None:
    for name in ("undisturbed", "disturbed"):
        guest.write(
            f"{CONF}/{name}.conf",
            f"[program:{name}]\ncommand = {ENVIRONMENT}/bin/python /src/examples/digits.py\n"
            f"environment = PYTHONPATH=/src\ncheckpoint_dir = {CHECKPOINTS}/{name}\nreplicas = 2\n"
            f"checkpoint_interval = 500 steps\ndeterministic = true\nautostart = false\nstandby = off\n",
        )
    guest.run("supervisorctl", "update")
    guest.run("supervisorctl", "start", "undisturbed")
    _until_state(guest, "undisturbed", "SUCCEEDED")

    guest.run("supervisorctl", "start", "disturbed")
    until(lambda: (guest.status("disturbed")["job"]["step"] or 0) >= 300, "it is in mid-training", PATIENCE_S)
    guest.power_off()
    flushed = [checkpoint.name for checkpoint in _checkpoints(guest, "disturbed")]
    guest.boot()
    _until_state(guest, "disturbed", "SUCCEEDED")

    assert flushed and f"step-{LAST_STEP:010d}.a1" not in flushed, flushed
    assert _checkpoints(guest, "disturbed")[-1].name == f"step-{LAST_STEP:010d}.a2"
    assert _final_bytes(guest, "disturbed") == _final_bytes(guest, "undisturbed")


def _until_state(guest: Guest, name: str, state: str) -> None:
    until(lambda: guest.status(name)["state"] == state, f"{name} is {state}", PATIENCE_S)


def _checkpoints(guest: Guest, name: str) -> list[Path]:
    return sorted(guest.path(f"{CHECKPOINTS}/{name}").glob("step-*"))


def _final_bytes(guest: Guest, name: str) -> bytes:
    """The tensors of the last step's checkpoint, as they lie on the disk."""
    final = next(
        checkpoint for checkpoint in _checkpoints(guest, name) if checkpoint.name.startswith(f"step-{LAST_STEP:010d}.")
    )
    files = sorted(final.glob("ckpt.data-*"))
    assert files, f"{final} has no tensors"
    return b"".join(file.read_bytes() for file in files)
