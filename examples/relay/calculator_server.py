"""Reckons: the four operations, and what a scientific calculator adds."""

import ast
import math
import operator
from collections.abc import Callable

from small_server import serve

BINARY: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def calculator(expression: str) -> float:
    """Reckon an expression of numbers, + - * / and brackets."""
    return reckon(ast.parse(expression, mode="eval").body)


def reckon(node: ast.expr) -> float:
    """Walk the expression: nothing in it is ever run as code."""
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.BinOp(left, operation, right) if type(operation) in BINARY:
            return BINARY[type(operation)](reckon(left), reckon(right))
        case ast.UnaryOp(ast.USub(), operand):
            return -reckon(operand)
    raise ValueError("only numbers, + - * / and brackets")


def scientific_calculator(function: str, value: float) -> float:
    """Apply sin, cos, sqrt or log."""
    known = {"sin": math.sin, "cos": math.cos, "sqrt": math.sqrt, "log": math.log}
    return round(known[function](value), 6)


if __name__ == "__main__":
    serve(
        "calculator",
        {
            "calculator": (calculator, "Reckon an expression.", {"expression": "string"}),
            "scientific_calculator": (
                scientific_calculator,
                "Apply sin, cos, sqrt or log to a number.",
                {"function": "string", "value": "number"},
            ),
        },
    )
