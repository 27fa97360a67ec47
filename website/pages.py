"""What the site has beside docs/: files of the repository that its pages link to, and the Python API.

MkDocs calls the functions `on_...`. A page of docs/ keeps the links that work in the repository, such as
`../examples/digits.py`; here the file becomes a page below `source/`, and the link leads to that.
"""

import ast
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
LANGUAGES = {".py": "python", ".conf": "ini", ".sh": "sh", ".json": "json", ".yml": "yaml", ".yaml": "yaml"}


def repository_path(site_path: str) -> str:
    """Where the page at `site_path` lies in the repository."""
    return site_path.removeprefix("source/") if site_path.startswith("source/") else f"docs/{site_path}"


def site_path(path: str) -> str | None:
    """The source of the page that shows the repository's file `path`; None if there is no such file."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if not (ROOT / path).is_file():
        return None
    return f"source/{path}" if path.endswith(".md") else f"source/{path}.md"


def targets(markdown: str, path: str) -> list[str]:
    """The files of the repository to which the page `path` links."""
    folder = posixpath.dirname(path)
    return [posixpath.normpath(posixpath.join(folder, link)) for link, _ in LINK.findall(markdown)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, "api.md", content=api_page()))
    files.append(File.generated(config, "assets/iframe-worker.js", abs_src_path=str(HERE / "iframe-worker.js")))
    pending = [repository_path(file.src_uri) for file in files.documentation_pages() if file.src_uri != "api.md"]
    seen = set(pending)
    while pending:
        path = pending.pop()
        if not path.endswith(".md"):
            continue
        for target in targets((ROOT / path).read_text(), path):
            page = site_path(target)
            if page is None or not page.startswith("source/") or target in seen:
                continue
            seen.add(target)
            pending.append(target)
            text = (ROOT / target).read_text()
            if not target.endswith(".md"):
                text = f"# {target}\n\n~~~~{LANGUAGES.get(Path(target).suffix, 'text')}\n{text}~~~~\n"
            files.append(File.generated(config, page, content=text, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = page.file.src_uri
    folder = posixpath.dirname(repository_path(here))

    def rewrite(link: re.Match[str]) -> str:
        target = site_path(posixpath.normpath(posixpath.join(folder, link[1])))
        if target is None:
            return link[0]  # MkDocs names it
        return f"]({posixpath.relpath(target, posixpath.dirname(here) or '.')}{link[2] or ''})"

    return LINK.sub(rewrite, markdown)


def api_page() -> str:
    """A page with each public name of the package `worker`, functions and classes first."""
    tree = ast.parse((ROOT / "worker/__init__.py").read_text())
    values = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id in ("__all__", "_DEFINED_IN", "_MODULES")
    }
    lines = ["# Python API", "", "What a training script may use of the package `worker`.", ""]
    for name in sorted(values["_DEFINED_IN"]):
        lines += [f"## worker.{name}", "", f"::: {values['_DEFINED_IN'][name]}.{name}", "    options:",
                  "      show_root_heading: false", "      show_root_toc_entry: false", ""]  # fmt: skip
    for name in values["_MODULES"]:
        lines += [f"## worker.{name}", "", f"::: worker.{name}", "    options:",
                  "      show_root_heading: false", "      show_root_toc_entry: false", ""]  # fmt: skip
    return "\n".join(lines)
