"""Which statements of a script only give names to values, so that nothing that it does later depends on their order."""

import ast
from collections.abc import Iterator, Sequence

_QUIET = (
    ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Starred, ast.Tuple, ast.List, ast.Dict,
    ast.Set, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.JoinedStr, ast.FormattedValue,
    ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip
_QUIET_CALLS = frozenset(
    {
        "Path", "TypeVar", "bool", "dataclass", "dataclasses.dataclass", "environ.get", "float", "getenv", "int",
        "logging.getLogger", "os.environ.get", "os.getenv", "os.path.abspath", "os.path.dirname", "os.path.join",
        "pathlib.Path", "str",
    }
)  # fmt: skip
_QUIET_METHODS = ("absolute", "expanduser", "resolve")  # of a path


def is_quiet_statement(statement: ast.stmt) -> bool:
    """Whether a statement only gives names to values. What it computes depends on nothing that it changes."""
    match statement:
        case ast.Pass():
            return True
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Assign(targets=targets, value=value):
            return all(isinstance(node, ast.Name | ast.Tuple) for node in _flat(targets)) and is_quiet(value)
        case ast.AnnAssign(target=ast.Name(), annotation=annotation, value=value):
            return is_quiet(annotation) and (value is None or is_quiet(value))
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            arguments = statement.args
            defaults = [*arguments.defaults, *(default for default in arguments.kw_defaults if default is not None)]
            annotated = [arguments.vararg, arguments.kwarg, *arguments.posonlyargs, *arguments.args]
            hints = [kwonlyarg.annotation for kwonlyarg in (*annotated, *arguments.kwonlyargs) if kwonlyarg is not None]
            every = [*defaults, *statement.decorator_list, *(hint for hint in (*hints, statement.returns) if hint)]
            return all(map(is_quiet, every)) and all(map(_is_known_decorator, statement.decorator_list))
        case ast.ClassDef(bases=bases, keywords=[], body=body, decorator_list=decorators):
            return (
                all(map(is_quiet, (*bases, *decorators)))
                and all(map(_is_known_decorator, decorators))
                and all(map(is_quiet_statement, body))
            )
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"), orelse=[]):
            return True
    return False


def _flat(targets: Sequence[ast.expr]) -> Iterator[ast.expr]:
    for target in targets:
        yield from _flat(target.elts) if isinstance(target, ast.Tuple | ast.List) else [target]


def _is_known_decorator(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(called).rpartition(".")[2] in ("dataclass", "property", "staticmethod", "classmethod", "setter")


def is_quiet(expression: ast.expr) -> bool:
    """Whether an expression calls nothing but what is known to have no effect."""
    for node in ast.walk(expression):
        if isinstance(node, ast.Call):
            is_method = isinstance(node.func, ast.Attribute) and node.func.attr in _QUIET_METHODS
            if not is_method and ast.unparse(node.func) not in _QUIET_CALLS:
                return False
        elif not isinstance(node, (*_QUIET, ast.keyword)):
            return False
    return True
