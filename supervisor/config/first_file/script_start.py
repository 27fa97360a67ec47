"""How a person starts a script, so that the daemon starts it alike: the command, the folder, where its modules are."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from supervisor.config.first_file.interpreters import has_module
from supervisor.config.first_file.script_survey import ScriptError, ScriptSurvey

MAX_LEVELS = 4  # of folders above a script in which its modules are looked for
_MODULE = "-m"


@dataclass(frozen=True, slots=True)
class ScriptStart:
    """`script`: the file; `words`: what follows the interpreter; `directory`: where it is started; `modules`: folders
    for PYTHONPATH. `module`: its dotted name, "" for a script that is started by its path."""

    script: Path
    words: tuple[str, ...]
    directory: Path
    module: str = ""
    modules: tuple[Path, ...] = ()


def named_script(words: Sequence[str], here: Path) -> tuple[Path, str, list[str]]:
    """The script, its dotted name for `-m MODULE`, and its arguments, by the words of a command line in `here`.

    Raises ScriptError if there is no such module below `here`, or an option of supervisord in the script's place.
    """
    if words[0].startswith("-") and words[0] != _MODULE:
        raise ScriptError(
            f"cannot use {words[0]!r} as a script: what follows --init are the script and its arguments; write options "
            f"of supervisord before it, as in supervisord -c FILE --init train.py"
        )
    if words[0] != _MODULE:
        return here / words[0], "", [*words[1:]]
    name = words[1] if len(words) > 1 else ""
    parts = name.split(".")
    places = [here.joinpath(*parts).with_suffix(".py"), here.joinpath(*parts, "__main__.py")]
    script = next((place for place in places if all(parts) and place.is_file()), None)
    if script is None:
        raise ScriptError(
            f"cannot find the module {name!r} below {here}; "
            f"go to the folder in which python -m {name or 'MODULE'} works"
        )
    return script, name, [*words[2:]]


def how_started(script: Path, module: str, arguments: Sequence[str], survey: ScriptSurvey, here: Path) -> ScriptStart:
    """How a Python script is started: by the name that was given, as part of its package, or by its path."""
    if not module and survey.levels:
        module = _dotted_name(script, survey.levels)
    if module:
        parts = module.split(".")
        top = script.parents[len(parts) if script.stem == "__main__" else len(parts) - 1]
        start = ScriptStart(script, (_MODULE, module, *arguments), top, module)
        own = top
    else:
        is_below = here != script.parent and script.is_relative_to(here)
        directory = here if is_below and _uses_files_of(here, script.parent, survey.texts) else script.parent
        start = ScriptStart(script, (str(script.relative_to(directory)), *arguments), directory)
        own = script.parent
    return replace(start, modules=tuple(dict.fromkeys(_folders_of_modules(own, survey.imports, here))))


def _dotted_name(script: Path, levels: int) -> str:
    """The name of a module that imports from its own package, by the folders that are packages."""
    package = script.parent
    while (package / "__init__.py").is_file() and package.parent != package:
        package = package.parent
    top = min(package, script.parents[min(levels, len(script.parents) - 1)], key=lambda folder: len(folder.parts))
    parts = script.relative_to(top).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__main__" else parts)


def _uses_files_of(here: Path, beside: Path, texts: Sequence[str]) -> bool:
    """Whether the script names a file that is in `here` and not beside it, so it was written to be started there."""
    return any(_is_there(here / text) and not _is_there(beside / text) for text in texts)


def _folders_of_modules(own: Path, imports: Sequence[str], here: Path) -> Iterator[Path]:
    """Folders above the script, and their `src`, that have a module which it imports and which is not beside it."""
    places = [folder / inner for folder in [*own.parents][:MAX_LEVELS] for inner in ("", "src")]
    places = [here, here / "src", *places] if own.is_relative_to(here) else places
    for name in imports:
        if name in sys.stdlib_module_names or has_module(own, name):
            continue
        folder = next((place for place in places if has_module(place, name)), None)
        if folder is not None:
            yield folder


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long for a name, or no name at all
        return False
