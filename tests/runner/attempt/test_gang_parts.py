"""What the daemons of a gang tell each other of checkpoints."""

import asyncio

from supervisor.protocol.gang import GangMessage, PartUploaded, UploadPart
from supervisor.runner.attempt.gang_parts import GangParts


async def test_a_node_that_can_not_upload_because_of_a_defect_says_so() -> None:
    """The chief's daemon waits for an answer of each, and its worker for that."""
    said: list[tuple[GangMessage, int | None]] = []
    parts = GangParts()
    parts.connect(lambda message, node: said.append((message, node)))

    async def upload(message: UploadPart) -> PartUploaded:
        raise RuntimeError("a defect")

    parts.serve(upload, lambda message: None)
    parts.on_message(0, UploadPart(5, "step-0000000100.a1", 1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert said == [(PartUploaded(5, "an internal error, which its log has: RuntimeError('a defect')", True), 0)]
