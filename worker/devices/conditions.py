"""The conditions on which the bits of a run depend besides program, data and state: recorded, pinned, compared.

They are recorded in every manifest and, before the first step, in a file of the checkpoint directory, so that a job
killed before its first checkpoint begins again under the same conditions. Each library names its own conditions
(tensorflow_conditions.py, torch/run.py); this module needs none of them.
"""

import contextlib
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from supervisor import __version__
from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints import manifest, selection
from supervisor.protocol.checkpoints.manifest import Manifest, ManifestError
from supervisor.protocol.formats import KEY, NewerFormat, check_format

Conditions = Mapping[str, str | int | bool]

THREADS = "intra_op_threads"
ONEDNN = "onednn"
ONEDNN_VARIABLE = "TF_ENABLE_ONEDNN_OPTS"
FORMAT = 1
MAX_BYTES = 1 << 16  # of the file; it is some hundred bytes
_INFORMATIONAL = frozenset({"cores", "inter_op_threads", "stepkeeper"})
"""Recorded for people: the bits don't depend on them."""


def base_versions() -> dict[str, str]:
    """Of what every run has."""
    return {"python": platform.python_version(), "stepkeeper": __version__}


def cores() -> int:
    """Those that this process may use: as many intra-op threads TensorFlow starts if nobody says otherwise."""
    return len(os.sched_getaffinity(0))


def processor() -> str:
    """The processor's model: libraries choose their kernels by what it can do."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())


def threads_of_environment(name: str = "TF_NUM_INTRAOP_THREADS") -> int | None:
    """What a variable says; TensorFlow takes it where the program sets nothing, and ignores what is no number above
    0."""
    text = os.environ.get(name, "").strip()
    return int(text) if text.isascii() and text.isdecimal() and int(text) > 0 else None


def conditions_of(content: Manifest) -> Conditions:
    """Those a checkpoint was made under."""
    return {**content.versions, **content.topology}


def recorded_conditions(directory: Path) -> Conditions | None:
    """Those the job trained under last: of its newest checkpoint, else of its first start; None if it has neither.

    Raises OSError if the directory can't be read.
    """
    for name in selection.committed_checkpoints(directory):
        try:
            return conditions_of(manifest.read_manifest(directory / str(name)))
        except (ManifestError, NewerFormat):
            continue
    body = _read_file(directory)
    return None if body is None else {key: value for key, value in body.items() if key != KEY}


def _read_file(directory: Path) -> dict[str, Any] | None:
    try:
        body: Any = json.loads(durable.read_file(directory / layout.CONDITIONS, MAX_BYTES))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def record_conditions(present: Conditions, directory: Path) -> None:
    """Remembers the conditions of a job that has no checkpoint yet. On the disk when it returns; raises OSError.

    Those that a later version remembered stay as they are: NewerFormat.
    """
    with contextlib.suppress(ValueError):  # damaged
        check_format(_read_file(directory) or {}, FORMAT, layout.CONDITIONS)
    content = {KEY: FORMAT, **present}
    durable.write_file(directory / layout.CONDITIONS, (json.dumps(content, indent=1) + "\n").encode())


def recorded_threads(of: Conditions | None) -> int | None:
    """The number of intra-op threads among recorded conditions."""
    number = (of or {}).get(THREADS)
    return number if type(number) is int and number > 0 else None


def is_onednn_set() -> bool:
    """Whether the environment says if TensorFlow uses oneDNN; if not, the processor decides."""
    return ONEDNN_VARIABLE in os.environ


def pin_onednn(directory: Path) -> None:
    """Makes TensorFlow use oneDNN, or not, as when the job trained last, unless the environment says so already.

    TensorFlow reads the variable when it is imported; after that, this does nothing.
    """
    if is_onednn_set() or "tensorflow" in sys.modules:
        return
    with contextlib.suppress(OSError):  # the error is reported when the directory is opened
        before = (recorded_conditions(directory) or {}).get(ONEDNN)
        if isinstance(before, bool):
            os.environ[ONEDNN_VARIABLE] = str(int(before))


def report_changed_conditions(
    present: Conditions,
    directory: Path,
    restored: Path | None,
    show_message: Callable[[str], None],
    write: Callable[[Conditions, Path], None] = record_conditions,
) -> tuple[str, ...]:
    """What differs from the conditions of the last training, in words; reports it with `show_message`.

    `restored`: the checkpoint that training continues from. `write` records the conditions of a first start.
    """
    if restored is not None and restored.is_dir():
        before: Conditions | None = conditions_of(manifest.read_manifest(restored))
    else:
        before = recorded_conditions(directory)
        if before != present:
            try:
                write(present, directory)
            except OSError as error:
                show_message(f"cannot record the conditions of this start in {directory}: {error}")
    changed = differences(before, present) if before is not None else ()
    if changed:
        show_message(f"training continues under other conditions, so not to the same bits: {'; '.join(changed)}")
    return changed


def differences(before: Conditions, present: Conditions) -> tuple[str, ...]:
    """The conditions that differ, in words; one that is missing on either side doesn't count."""
    return tuple(
        f"{key} is {present[key]}, was {before[key]}"
        for key in present
        if key in before and key not in _INFORMATIONAL and before[key] != present[key]
    )
