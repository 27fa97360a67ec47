"""Before an attempt of a job starts: its GPUs have to be free of the last one, and in order."""

import asyncio
import os
from collections.abc import Mapping

from supervisor.config import ProgramConfig
from supervisor.core.gpus import Verdict, judge
from supervisor.host import marks
from supervisor.host.gpus import ANSWERS_WITHIN_S, Gpus

AGAIN_S = 0.2  # between two looks; the driver gives memory back within a second or two of the process' end


async def until_fit(
    gpus: Gpus,
    config: ProgramConfig,
    last_pid: int | None,
    program_mark: str,
    limit_s: float,
    standby: int | None = None,
) -> Verdict:
    """Waits, at most `limit_s`, for the memory of the last attempt; the last verdict. `program_mark`: how the marks of
    all attempts of the program begin. `standby`: the process that is to be the next, and may hold memory.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + limit_s
    while True:
        verdict = await _look(gpus, config, last_pid, program_mark, standby)
        if verdict.waits is None or loop.time() >= until:
            return verdict
        await asyncio.sleep(AGAIN_S)


async def _look(
    gpus: Gpus, config: ProgramConfig, last_pid: int | None, program_mark: str, standby: int | None
) -> Verdict:
    visible = visible_to(config.environment, os.environ)
    try:
        found = await asyncio.wait_for(asyncio.to_thread(gpus.look), ANSWERS_WITHIN_S)
    except TimeoutError:
        return Verdict(sick=f"NVIDIA's driver has not answered for {ANSWERS_WITHIN_S:g} s; restart the host")
    holders = {pid for each in found for pid in each.pids} - {standby}
    mine = {pid for pid in holders if pid == last_pid or (marks.of_process(pid) or "").startswith(program_mark)}
    return judge(found, gpus.known, visible, mine)


def visible_to(own: Mapping[str, str], inherited: Mapping[str, str]) -> str | None:
    """CUDA_VISIBLE_DEVICES as a program has it."""
    return own.get("CUDA_VISIBLE_DEVICES", inherited.get("CUDA_VISIBLE_DEVICES"))
