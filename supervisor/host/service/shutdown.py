"""Whether the host itself is going down, as its service manager says: a stop then is none of the operator's."""

import asyncio
import contextlib
from pathlib import Path

BOOTED = Path("/run/systemd/system")  # sd_booted(3): there if and only if systemd manages this host
PATIENCE_S = 2.0  # it answers in milliseconds; if it can't, we leave all the same
GOING_DOWN = b"stopping"  # of systemctl(1): shutdown.target is wanted, so this is no restart and no stop of ours alone


async def is_under_way(booted: Path = BOOTED, patience_s: float = PATIENCE_S) -> bool:
    """Whether systemd is shutting the host down; False where there is no systemd, or no answer in time.

    /run/systemd/shutdown/scheduled would not do: it is there for a shutdown at an hour, and not for `poweroff`.
    """
    if not booted.is_dir():  # noqa: ASYNC240 - /run is memory
        return False
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        asking = await asyncio.create_subprocess_exec(
            "systemctl", "is-system-running", stdin=nothing, stdout=pipe, stderr=nothing
        )
    except OSError:
        return False
    try:
        async with asyncio.timeout(patience_s):
            said, _ = await asking.communicate()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            asking.kill()
        await asking.wait()
        return False
    return said.strip() == GOING_DOWN
