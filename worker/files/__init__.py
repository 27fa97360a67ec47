"""Runs whose program writes its own checkpoint files, without TensorFlow: `worker.files.FilesRun`."""

from worker.files.files_run import FilesRun
from worker.files.writer import Unfit
from worker.saving.save import NotFinite

__all__ = ["FilesRun", "NotFinite", "Unfit"]
