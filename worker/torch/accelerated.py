"""DataLoaders of accelerate: their batches on the device, and what `accelerator.accumulate` has to know of the end.

A prepared loader reads one batch ahead, to know which one is the last. The plan of `run.batches` knows that without
reading. So random numbers of the data are drawn where training is.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from worker.state.state_file import Position

MODULE = "accelerate.data_loader"


def is_prepared(loader: Any) -> bool:
    """Whether a loader is one of `accelerator.prepare`, or one that accelerate made of such a loader."""
    return type(loader).__module__ == MODULE


def refusal(loader: Any) -> str | None:
    """Why a prepared loader can't be resumed, with what to write; None if it can."""
    module = sys.modules[MODULE]
    samplers = getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None)
    skips = getattr(loader, "skip_batches", 0) or any(
        isinstance(sampler, module.SkipBatchSampler) for sampler in samplers
    )
    if skips or type(loader) is module.SkipDataLoader:
        return (
            "cannot use a loader of accelerate's skip_first_batches: run.batches itself skips what is consumed; give "
            "it the loader that accelerator.prepare returned"
        )
    if processes_of(loader) > 1:
        return (
            f"cannot resume a loader of accelerate under {processes_of(loader)} processes: worker.torch.Run saves the "
            f"state of one process; start the script without accelerate launch, or with --num_processes 1"
        )
    return None


def processes_of(loader: Any) -> int:
    """How many processes divide the batches between them."""
    return int(sys.modules["accelerate.state"].PartialState().num_processes)


@dataclass
class AcceleratedPlan:
    """Gives out the batches of another plan as a prepared loader does. `plan`: knows which batch is the last."""

    loader: Any
    plan: Any

    def describe(self) -> dict[str, Any]:
        """What decides which batches come, by name."""
        return dict(self.plan.describe())

    @property
    def kept(self) -> tuple[Any, ...]:
        """The objects whose state it keeps."""
        return (*self.plan.kept, self.loader)

    @property
    def dataset(self) -> Any:
        """What is read."""
        return self.plan.dataset

    @property
    def has_processes(self) -> bool:
        """Whether loader processes read it."""
        return bool(self.plan.has_processes)

    def follow(self, before: Any) -> None:
        """Takes over what the plan before this one knows."""
        self.plan.follow(before.plan if isinstance(before, AcceleratedPlan) else before)

    def state(self) -> Mapping[str, Any] | None:
        """What a checkpoint has to hold now."""
        return self.plan.state()  # type: ignore[no-any-return]

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Gives the state that `state` returned before the restart."""
        self.plan.restore(state)

    def read(self, position: Position) -> Iterator[tuple[Any, Position]]:
        """Yields the batches that are left of an epoch, each with the position behind it."""
        loader, module = self.loader, sys.modules[MODULE]
        device = getattr(loader, "device", None)
        if type(loader) is module.DataLoaderDispatcher:
            device = loader.state.device
        loader.begin()
        try:
            for batch, behind in self.plan.read(position):
                loader.end_of_dataloader = self.plan.is_last
                if device is None:
                    yield batch, behind
                else:
                    yield module.send_to_device(batch, device, non_blocking=loader._non_blocking), behind
            loader.iteration = position.epoch + 1
        finally:
            loader.end()
