"""PyTorch as a job: `worker.torch.Run` and `worker.torch.prepare`."""

from worker.torch.run import Run, prepare

__all__ = ["Run", "prepare"]
