"""How does a PyTorch loop run as a job? Provides `worker.torch.Run` and `prepare`, on top of `worker.files`."""

from worker.torch.run import TorchRun as Run
from worker.torch.run import prepare

__all__ = ["Run", "prepare"]
