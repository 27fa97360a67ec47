"""An automatic standby of a script: imports packages for it, waits, and then runs it as `python SCRIPT.py` would.

No line of the script runs before the process is an attempt. Started by the daemon in place of the script
(`PRELOAD` of supervisor/runner/attempt/launching.py), with the interpreter, flags, arguments and environment of it.
"""

import importlib
import os
import sys
from collections.abc import Iterable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType

from worker.process import standby
from worker.process.attempt import Attempt
from worker.process.import_survey import Survey, survey
from worker.process.startup import attempt_or_standby

_TENSORFLOW = ("tensorflow", "keras", "tf_keras")


def main() -> None:
    """Becomes the next attempt of the script that the command line names."""
    code_at = sys.orig_argv.index("-c")
    del sys.orig_argv[code_at : code_at + 2]  # a process that starts anew is the script
    sys.argv = sys.argv[1:]
    script = Path(sys.argv[0])
    folder = str(script.resolve().parent)
    search = sys.path if sys.flags.safe_path else [folder, *sys.path]
    attempt = attempt_or_standby()
    sys.modules["__main__"] = module = _main_module(script)
    report = survey(script, search)
    problem = _why_pointless(report, attempt) or _import_ahead(report)
    if problem is None and not sys.flags.safe_path:
        problem = _shadowed(folder)
    if problem is not None:
        standby.decline(attempt, problem)
    standby.wait_for_promotion(attempt)
    if not sys.flags.safe_path:
        sys.path.insert(0, folder)
    importlib.invalidate_caches()
    _hide_own_frames()
    exec(compile(script.read_bytes(), str(module.__file__), "exec", dont_inherit=True), module.__dict__)  # noqa: S102


def _main_module(script: Path) -> ModuleType:
    """A `__main__` as Python makes it for a script."""
    module = ModuleType("__main__")
    module.__file__ = os.path.abspath(script)  # noqa: PTH100 - as Python does it: links stay
    module.__loader__ = SourceFileLoader("__main__", str(module.__file__))
    module.__dict__.update(__package__=None, __cached__=None, __annotations__={}, __builtins__=sys.modules["builtins"])
    return module


def _why_pointless(report: Survey, attempt: Attempt) -> str | None:
    """Why a standby would be no quicker than a new process, or would train to other bits."""
    order = [entry.module.partition(".")[0] for entry in report.imports]
    packages = [entry for entry in report.imports if entry.module != "worker" or entry.from_names]
    if not report.imports_worker:
        return "the script does not import worker"
    if not packages:
        return f"nothing can be imported before {report.ends_at or 'the script runs'} (docs/standby.md)"
    ahead = order[: order.index("worker")] if "worker" in order else order
    early = [package for package in ahead if package in _TENSORFLOW]
    if attempt.launch.deterministic and early:
        return f"the job is deterministic and imports {early[0]} before worker; import worker first"
    return None


def _import_ahead(report: Survey) -> str | None:
    """Imports what can be; returns what went wrong. The script meets the same error, and reports it as its own."""
    try:
        for entry in report.imports:
            _load(
                __import__(entry.module, {}, {}, entry.from_names), entry.from_names if entry.module == "worker" else ()
            )
        if report.is_settled and "tensorflow" in sys.modules:  # these read the environment as well
            _load(sys.modules["tensorflow"].keras if report.uses_keras else None, ("layers",))
            _load(sys.modules["worker"], sorted(report.worker_names & set(sys.modules["worker"].__all__) - {"torch"}))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is no reason to fail now
        return f"cannot import ahead what the script imports: {error!r:.300}"
    return None


def _load(module: ModuleType | None, names: Iterable[str]) -> None:
    """Loads what a module imports only when it is used."""
    for name in names if module is not None else ():
        getattr(module, name)


def _shadowed(folder: str) -> str | None:
    """Names a file of the script's folder that Python would have taken for one of the modules imported by now."""
    try:
        beside = list(Path(folder).iterdir())
    except OSError as error:
        return f"cannot list the script's folder: {error}"
    for path in beside:
        name = path.stem if path.suffix == ".py" else path.name if (path / "__init__.py").is_file() else None
        loaded = (
            sys.modules.get(name) if name is not None and name not in ("__main__", "worker", "supervisor") else None
        )
        place = getattr(loaded, "__file__", None)
        if loaded is not None and name not in sys.builtin_module_names and place != str(path):
            return f"{path.name} beside the script takes the place of a module that packages import"
    return None


def _hide_own_frames() -> None:
    """Has tracebacks begin in the script."""
    previous = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        while where is not None and where.tb_frame.f_code.co_filename in (__file__, "<string>"):
            where = where.tb_next
        previous(kind, error.with_traceback(where), where)

    sys.excepthook = report
