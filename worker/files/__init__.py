"""Runs whose program writes its own checkpoint files, without TensorFlow: `worker.files.FilesRun`.

May import saving, progress, devices, state and process.
"""

from worker.files.files_run import FilesRun, prepare
from worker.files.files_writer import Copying, Files
from worker.saving.commit import NotFinite
from worker.saving.directory import Unfit

__all__ = ["Copying", "Files", "FilesRun", "NotFinite", "Unfit", "prepare"]
