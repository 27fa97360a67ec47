"""Markdown to the macros of man(7): what the pages of man/ and docs/ use, and nothing else."""

import re
from collections.abc import Iterator, Sequence

from markdown_it import MarkdownIt
from markdown_it.token import Token

_PARSER = MarkdownIt("commonmark").enable("table")
_ESCAPES = {"\\": "\\e", "~": "\\(ti", "^": "\\(ha", "`": "\\(ga"}


def escaped(text: str, *, is_literal: bool = False) -> str:
    """The text for troff. `is_literal`: hyphens are those that one types, not those of prose."""
    text = "".join(_ESCAPES.get(char, char if char.isascii() else f"\\[u{ord(char):04X}]") for char in text)
    if is_literal:
        text = text.replace("-", "\\-").replace("'", "\\(aq").replace('"', "\\(dq")
    return text


def protected(line: str) -> str:
    """The line, never taken for a request."""
    return f"\\&{line}" if line[:1] in (".", "'") else line


def bold(text: str) -> str:
    return f"\\fB{escaped(text, is_literal=True)}\\fR"


def italic(text: str) -> str:
    return f"\\fI{escaped(text, is_literal=True)}\\fR"


def inline(markdown: str) -> str:
    """One paragraph's text."""
    return _inline(_PARSER.parseInline(markdown)[0].children or [])


def tagged(tag: str, text: str) -> Iterator[str]:
    """A paragraph with a tag: both are troff already."""
    yield from (".TP", protected(tag), *_lines(text))


def blocks(markdown: str) -> Iterator[str]:
    """The lines of everything in it."""
    tokens = _PARSER.parse(markdown)
    at = 0
    while at < len(tokens):
        end = _end(tokens, at)
        yield from _block(tokens[at : end + 1])
        at = end + 1


def _end(tokens: Sequence[Token], at: int) -> int:
    """Where the block that begins there ends."""
    depth = 0
    for index in range(at, len(tokens)):
        depth += tokens[index].nesting
        if depth == 0:
            return index
    raise ValueError("a block has no end")


def _block(tokens: Sequence[Token]) -> Iterator[str]:
    kind, body = tokens[0].type, tokens[1:-1]
    if kind == "heading_open":
        title = _inline(body[0].children or [])
        yield f".SH {title.upper()}" if tokens[0].tag == "h2" else f'.SS "{title}"'
    elif kind == "paragraph_open":
        yield from (".PP", *_lines(_inline(body[0].children or [])))
    elif kind == "fence":
        yield from (".PP", ".RS 4", ".nf")
        yield from (protected(escaped(line, is_literal=True)) for line in tokens[0].content.splitlines())
        yield from (".fi", ".RE")
    elif kind == "bullet_list_open":
        for text in _texts(body):
            yield from (".IP \\(bu 2", *_lines(text))
    elif kind == "table_open":
        yield from _table(body)
    else:
        raise ValueError(f"cannot write {kind} as a man page; write it in another way")


def _table(tokens: Sequence[Token]) -> Iterator[str]:
    """The first cell of a row as the tag, the others behind it, with the head of their column if there are several."""
    rows: list[list[str]] = []
    for index, token in enumerate(tokens):
        if token.type == "tr_open":
            rows.append([])
        elif token.type in ("td_open", "th_open"):
            rows[-1].append(_inline(tokens[index + 1].children or []))
    head, *rest = rows
    for tag, *cells in rest:
        texts = cells if len(cells) == 1 else [f"{name}: {cell}." for name, cell in zip(head[1:], cells, strict=True)]
        yield from tagged(tag, "\n".join(texts))


def _texts(tokens: Sequence[Token]) -> list[str]:
    return [_inline(token.children or []) for token in tokens if token.type == "inline"]


def _lines(text: str) -> Iterator[str]:
    return (protected(line.strip()) for line in text.splitlines())


def _inline(tokens: Sequence[Token]) -> str:
    parts = []
    target = ""
    for token in tokens:
        if token.type == "text":
            parts.append(escaped(token.content))
        elif token.type == "code_inline":
            parts.append(bold(token.content))
        elif token.type in ("softbreak", "hardbreak"):
            parts.append("\n")
        elif token.type in ("strong_open", "em_open"):
            parts.append("\\fB" if token.type == "strong_open" else "\\fI")
        elif token.type in ("strong_close", "em_close"):
            parts.append("\\fR")
        elif token.type == "link_open":
            target = str(token.attrs["href"])
        elif token.type == "link_close":
            parts.append(_linked(parts.pop(), target))
        else:
            raise ValueError(f"cannot write {token.type} as a man page; write it in another way")
    return "".join(parts)


def _linked(text: str, target: str) -> str:
    """A link's text, and where it leads: a page of docs/, another file of the source, or a URL."""
    page = re.sub(r"#.*", "", target)
    if not page:
        return text
    place = page if ":" in page else page[3:] if page.startswith("../") else f"docs/{page}"
    return escaped(place) if page.endswith(text) else f"{text} ({escaped(place)})"
