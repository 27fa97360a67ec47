"""Which GPUs the host has, by what NVML lists: also those that are gone, or that can't give their id any more."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from supervisor.core.gpus.health import GpuHealth
from supervisor.core.gpus.verdict import Gpu, chosen_gpus


@dataclass(slots=True)
class GpuInventory:
    """The GPUs of one host, since the daemon's start."""

    listed: tuple[GpuHealth, ...] = ()
    """What was last heard of all GPUs that are there."""
    _known: dict[str, GpuHealth] = field(default_factory=dict)

    def update(self, listed: Sequence[GpuHealth]) -> None:
        """These are there now."""
        self.listed = self.with_known_ids(listed)
        self._known |= {gpu.uuid: gpu for gpu in self.listed if gpu.uuid}

    def forget(self, uuid: str) -> None:
        """It was never there, unless it is listed again."""
        self._known.pop(uuid, None)

    @property
    def seen(self) -> frozenset[str]:
        """The ids of all GPUs that were listed."""
        return frozenset(self._known)

    @property
    def missing(self) -> set[str]:
        """The ids of those that were listed and are not any more."""
        return self._known.keys() - {gpu.uuid for gpu in self.listed}

    def devices(self) -> list[GpuHealth]:
        """All GPUs that are listed, or were."""
        missing = self.missing
        return [*self.listed, *(gpu for uuid, gpu in self._known.items() if uuid in missing)]

    def chosen(self, visible: str | None) -> list[Gpu]:
        """Those that a job with this CUDA_VISIBLE_DEVICES may use."""
        return chosen_gpus([Gpu(gpu.index, gpu.uuid) for gpu in self.devices()], visible)

    def id_at(self, address: str) -> str | None:
        """The id of the GPU at an address; None while that is not known."""
        return next((gpu.uuid for gpu in self.listed if gpu.address == address and gpu.uuid), None)

    def with_known_ids(self, listed: Sequence[GpuHealth]) -> tuple[GpuHealth, ...]:
        """`listed`, where a GPU in error that can't even give its id is the one that had its number before."""
        there = {gpu.uuid for gpu in listed}
        before = {gpu.index: gpu for gpu in self._known.values() if gpu.uuid not in there}
        return tuple(
            gpu
            if gpu.uuid or gpu.index not in before
            else replace(gpu, uuid=before[gpu.index].uuid, address=before[gpu.index].address)
            for gpu in listed
        )
