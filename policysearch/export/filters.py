"""A `module_filter_fn` of a script, followed without being run: which linears it takes."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Filter = Callable[[str, int, int], bool]
"""Called with the name of a linear, its outputs and its inputs."""


class Unread(Exception):
    """An expression says what is not followed here."""


OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
    ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv,
    ast.Mult: operator.mul,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
}
METHODS = ("startswith", "endswith", "split", "lower", "strip")
FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {"any": any, "all": all, "len": len, "list": list}
SIZES = {"out_features": 0, "in_features": 1}


def filter_of(node: ast.expr, tree: ast.Module, constants: Mapping[str, Any]) -> Filter:
    """Return what a lambda, or the name of a function of the file, takes.

    It raises Unread where that is neither, or says more than is followed.
    """
    functions = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    named = functions.get(node.id) if isinstance(node, ast.Name) else None

    def taken(name: str, n_out: int, n_in: int) -> bool:
        made = named or node
        if not isinstance(made, ast.Lambda | ast.FunctionDef):
            raise Unread(f"{ast.unparse(node)} is not in the file")
        arguments = [argument.arg for argument in made.args.args]
        if len(arguments) < 2:
            raise Unread(f"{', '.join(arguments)}: other arguments than a module and its name")
        names = {**constants, arguments[0]: (n_out, n_in), arguments[1]: name}
        read = _Reader(names, arguments[0])
        try:
            if isinstance(made, ast.Lambda):
                return bool(read.value(made.body))
            return bool(read.result(made.body))
        except (TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
            raise Unread(f"{type(error).__name__}: {error}") from None

    return taken


class _Reader:
    """The names that are known, and which of them is the module."""

    def __init__(self, names: dict[str, Any], module: str) -> None:
        self.names, self.module = names, module

    def result(self, body: Sequence[ast.stmt]) -> Any:
        """Return what the statements return; None where they come to their end."""
        for statement in body:
            match statement:
                case ast.Return(value=given):
                    return False if given is None else self.value(given)
                case ast.If(test=test, body=then, orelse=other):
                    if (found := self.result(then if self.value(test) else other)) is not None:
                        return found
                case ast.Assign(targets=[ast.Name(id=name)], value=given):
                    self.names[name] = self.value(given)
                case ast.Expr(value=ast.Constant() | ast.Call(func=ast.Name(id="print"))):
                    pass
                case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
                    self.names[name] = None  # a list that is filled, or a logger: not to be read
                case ast.Pass():
                    pass
                case _:
                    raise Unread(ast.unparse(statement).partition("\n")[0])
        return None

    def value(self, node: ast.expr) -> Any:
        """Return what an expression gives."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name) if self.names.get(name) is not None and name != self.module:
                return self.names[name]
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                return [self.value(part) for part in parts]
            case ast.BoolOp(op=op, values=parts):
                every = all if isinstance(op, ast.And) else any
                return every(self.value(part) for part in parts)
            case ast.UnaryOp(op=ast.Not(), operand=part):
                return not self.value(part)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                one, other = self.value(left), self.value(right)
                if isinstance(one, int) and isinstance(other, int):  # no long texts are made
                    return OPERATORS[type(op)](one, other)
            case ast.Compare(left=left, ops=ops, comparators=others):
                values = [self.value(part) for part in (left, *others)]
                pairs = zip(ops, values, values[1:], strict=False)
                if all(type(op) in OPERATORS for op in ops):
                    return all(OPERATORS[type(op)](a, b) for op, a, b in pairs)
            case ast.Attribute(value=ast.Name(id=name), attr=size) if name == self.module:
                if size in SIZES:
                    return self.names[name][SIZES[size]]
            case ast.Subscript(value=of, slice=place):
                return self.value(of)[self.value(place)]
            case ast.Call():
                return self._call_value(node)
        raise Unread(ast.unparse(node))

    def _call_value(self, call: ast.Call) -> Any:
        match call:
            case ast.Call(func=ast.Name(id="isinstance"), args=[ast.Name(id=of), kinds]):
                if of == self.module:
                    names = kinds.elts if isinstance(kinds, ast.Tuple) else [kinds]
                    return any(ast.unparse(x).rpartition(".")[2] == "Linear" for x in names)
            case ast.Call(func=ast.Name(id=name), args=[given]) if name in FUNCTIONS:
                if isinstance(given, ast.GeneratorExp | ast.ListComp):
                    return FUNCTIONS[name](self._each(given))
                return FUNCTIONS[name](self.value(given))
            case ast.Call(func=ast.Attribute(value=of, attr=name), args=given) if name in METHODS:
                text, values = self.value(of), [self.value(part) for part in given]
                if isinstance(text, str):
                    several = (tuple(x) if isinstance(x, list) else x for x in values)
                    return getattr(text, name)(*several)
        raise Unread(ast.unparse(call))

    def _each(self, given: ast.GeneratorExp | ast.ListComp) -> list[Any]:
        (loop, *more) = given.generators
        if more or not isinstance(loop.target, ast.Name):
            raise Unread(ast.unparse(given))
        found, held = [], dict(self.names)
        for value in self.value(loop.iter):
            self.names = {**held, loop.target.id: value}
            if all(self.value(test) for test in loop.ifs):
                found.append(self.value(given.elt))
        self.names = held
        return found
