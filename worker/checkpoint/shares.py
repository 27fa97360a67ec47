"""Which worker writes which tensors of a checkpoint that all of them write?

Pure, and the same on every worker. Only what the strategy keeps equal on all of them can be written by any; all the
rest, such as a variable that was made outside of the strategy, is the chief's. Tensors are not cut, so a model of which
one tensor is most is written mostly by one worker.
"""

import hashlib
import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from worker.checkpoint.bundle_writer import TensorSlot, flat_size

LEAST_BYTES = 32 << 20  # of all shares; with less, the chief alone has written it in a tenth of a second

Named = Sequence[tuple[str, tf.Tensor]]


@dataclass(frozen=True, slots=True)
class Shares:
    """By rank, the tensors that a worker writes, in their order in the file. `digest`: from 3 to 2**49, of all that
    it depends on; workers whose digests are equal divide alike."""

    tensors: tuple[Named, ...]
    digest: int

    def slots(self, rank: int) -> list[TensorSlot]:
        """Where in its file each tensor of a worker lies; not of the chief's."""
        slots, offset = [], 0
        for name, tensor in self.tensors[rank]:
            slots.append(TensorSlot(name, tensor.dtype, tuple(tensor.shape), offset, flat_size(tensor)))
            offset = slots[-1].end
        return slots


def divide(tensors: Named, mirrored: frozenset[str], workers: int, least_bytes: int) -> Shares | None:
    """Divides the tensors, so that no worker has much more to write than another; None for less than `least_bytes`.

    `mirrored`: the names of those that are equal on all workers.
    """
    sizes = {name: flat_size(tensor) for name, tensor in tensors if tensor.dtype != tf.string}
    common = {name: size for name, size in sizes.items() if name in mirrored}
    if sum(common.values()) < max(least_bytes, 1):
        return None
    own_bytes = sum(sizes.values()) - sum(common.values())
    loads = [(own_bytes, 0), *((0, rank) for rank in range(1, workers))]
    heapq.heapify(loads)
    ranks: dict[str, int] = {}
    for name, size in sorted(common.items(), key=lambda item: (-item[1], item[0])):  # the largest first
        load, rank = heapq.heappop(loads)
        ranks[name] = rank
        heapq.heappush(loads, (load + size, rank))
    described = [(name, tensor.dtype.name, tuple(tensor.shape)) for name, tensor in tensors if name in common]
    seen = hashlib.sha256(repr((workers, own_bytes, described)).encode()).digest()
    by_rank = tuple([item for item in tensors if ranks.get(item[0], 0) == rank] for rank in range(workers))
    return Shares(by_rank, int.from_bytes(seen[:6], "big") + 3)
