"""The XML of XML-RPC: the text of a call to Python values, and values to the text of a response.

Calls come from outside: document types, entities and external references are refused, and nesting is limited.
Responses contain what programs printed: characters that XML can't represent are replaced, so that clients can read it.
"""

import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from defusedxml import ElementTree

from supervisor.protocol.numbers import MAX_WHOLE, whole_number

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

Value: TypeAlias = "str | bytes | bool | int | float | Sequence[Value] | Mapping[str, Value] | None"

MAX_DEPTH = 16  # values within values; the deepest call there is, a multicall, has four
INT_BITS_32 = 1 << 31
SCALAR_CHARACTERS = 40  # of tags around a value, or a member of a struct
_NOT_PLAIN = re.compile("[&<>]|[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ESCAPED = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class MalformedXml(Exception):
    """The text is not an XML-RPC call; says what is wrong with it."""


def parse_call(body: bytes) -> tuple[str, list[Value]]:
    """The method's name and its parameters. Raises Malformed."""
    try:
        root = ElementTree.fromstring(body, forbid_dtd=True)
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # not XML, forbidden XML, an unknown encoding
        raise MalformedXml(f"the body is not acceptable XML: {error}") from error
    if root.tag != "methodCall":
        raise MalformedXml(f"the body is a {root.tag:.40}, not a methodCall")
    name = (root.findtext("methodName") or "").strip()
    if not name:
        raise MalformedXml("there is no methodName")
    return name, [_value(_only_child(param, "param"), 0) for param in root.iterfind("params/param")]


def _only_child(element: "Element", what: str) -> "Element":
    if len(element) != 1:
        raise MalformedXml(f"a {what} holds {len(element)} elements instead of one")
    return element[0]


def _value(element: "Element", depth: int) -> Value:
    if element.tag != "value":
        raise MalformedXml(f"{element.tag:.40} found where a value should be")
    if depth > MAX_DEPTH:
        raise MalformedXml(f"values are nested more than {MAX_DEPTH} deep")
    if not len(element):
        return element.text or ""
    typed = _only_child(element, "value")
    if typed.tag == "array":
        return [_value(item, depth + 1) for item in typed.iterfind("data/*")]
    if typed.tag == "struct":
        return dict(_member(member, depth + 1) for member in typed.iterfind("member"))
    parse = _SCALARS.get(typed.tag)
    if parse is None:
        raise MalformedXml(f"no method takes a value of type {typed.tag:.40}")
    try:
        return parse(typed.text or "")
    except ValueError as error:
        raise MalformedXml(f"{typed.text!r:.40} is not of type {typed.tag}") from error


def _member(element: "Element", depth: int) -> tuple[str, Value]:
    name, value = element.findtext("name"), element.find("value")
    if name is None or value is None:
        raise MalformedXml("a member of a struct lacks its name or its value")
    return name, _value(value, depth)


def _whole(text: str) -> int:
    number = whole_number(text, -MAX_WHOLE, MAX_WHOLE)
    if number is None:
        raise ValueError
    return number


def _truth(text: str) -> bool:
    if text.strip() not in ("0", "1"):
        raise ValueError
    return text.strip() == "1"


def _bytes(text: str) -> bytes:
    return binascii.a2b_base64("".join(text.split()), strict_mode=True)  # binascii.Error is a ValueError


_SCALARS: Mapping[str, Callable[[str], Value]] = {
    "string": str,
    "int": _whole,
    "i4": _whole,
    "i8": _whole,
    "boolean": _truth,
    "double": float,
    "base64": _bytes,
    "nil": lambda text: None,
}


def text_size(value: Value) -> int:
    """The approximate number of characters of its text."""
    if isinstance(value, str | bytes):
        return len(value) + SCALAR_CHARACTERS
    if isinstance(value, Mapping):
        return sum(map(text_size, value.values())) + SCALAR_CHARACTERS * len(value)
    if isinstance(value, Sequence):
        return sum(map(text_size, value))
    return SCALAR_CHARACTERS


def response(value: Value) -> bytes:
    """The text that answers a call with `value`."""
    return _document(f"<params>\n<param>\n{_encode(value)}</param>\n</params>\n")


def fault_response(code: int, text: str) -> bytes:
    """The text that answers a call with a fault."""
    return _document(f"<fault>\n{_encode({'faultCode': code, 'faultString': text})}</fault>\n")


def _document(content: str) -> bytes:
    return f"<?xml version='1.0'?>\n<methodResponse>\n{content}</methodResponse>\n".encode()


def _encode(value: Value) -> str:
    match value:
        case str():  # the most frequent first: lists of a thousand programs are made here
            inner = f"<string>{_text(value)}</string>"
        case bool():
            inner = f"<boolean>{value:d}</boolean>"
        case int():
            kind = "int" if -INT_BITS_32 <= value < INT_BITS_32 else "i8"  # a log may be larger than 2 GiB
            inner = f"<{kind}>{value}</{kind}>"
        case float():
            inner = f"<double>{value!r}</double>"
        case dict() | Mapping():
            members = [
                f"<member>\n<name>{_text(key)}</name>\n{_encode(item)}</member>\n" for key, item in value.items()
            ]
            inner = f"<struct>\n{''.join(members)}</struct>"
        case list() | Sequence() if not isinstance(value, bytes):
            inner = f"<array><data>\n{''.join(map(_encode, value))}</data></array>"
        case _:
            raise TypeError(f"XML-RPC has no type for {value!r:.60}")
    return f"<value>{inner}</value>\n"


def _text(text: str) -> str:
    return text if text.isascii() and text.isalnum() else _NOT_PLAIN.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return _ESCAPED.get(match[0], REPLACEMENT)
