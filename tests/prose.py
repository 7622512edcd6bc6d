"""Habits of docstrings that strangers stumble over, and arguments that nothing explains.

``python -m tests.prose`` counts the habits by package. ``--list what bench/cli`` prints each place
of one habit; ``--arguments bench/cli`` prints public functions with undocumented arguments;
``--draw 30 --seed 1`` prints public functions, drawn at random, with their docstrings.

An argument is documented if ``Args:`` lists it, or if the text names it in double backticks.
"""

import argparse
import ast
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tests.code_size import PRODUCT, ROOT

HABITS = {
    "where": r"\b[Ww]here\b",  # for "if" or "when"
    "what": r"\b[Ww]hat\b",  # "what is kept" for "stored vectors"
    "beside": r"\b[Bb]esides?\b",
    "said": r"\b[Ss]aid\b",
    "told": r"\b[Tt]old\b",
    "that of": r"\b([Tt]hat|[Tt]hose) of\b",
    "is no": r"\bis no\b",
}
FIRST_LINE = "semicolon"
Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Docstring:
    """A docstring with the place where it stands.

    Attributes:
        path: of the module, relative to the repository.
        line: of the definition.
        name: of the function or class with its class in front, empty for a module.
        text: the docstring without indentation.
        missing: parameters of a public function that the docstring does not name.
        public: whether it documents a function that other modules may call.
    """

    path: str
    line: int
    name: str
    text: str
    missing: tuple[str, ...] = ()
    public: bool = False

    def habits(self) -> Iterator[str]:
        """Yield the name of each habit, once for each occurrence."""
        for name, pattern in HABITS.items():
            yield from [name] * len(re.findall(pattern, self.text))
        if ";" in self.text.split("\n", 1)[0]:
            yield FIRST_LINE


def docstrings() -> list[Docstring]:
    """Read the docstrings of the product."""
    found: list[Docstring] = []
    for package in PRODUCT:
        for path in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found.extend(_below(tree, path.relative_to(ROOT).as_posix(), "", True))
    return found


def _below(
    node: ast.AST, path: str, outer: str, public: bool, above: str = ""
) -> Iterator[Docstring]:
    if isinstance(node, Definition):
        name = getattr(node, "name", "")
        public = public and (not name.startswith("_") or name == "__init__")
        outer = f"{outer}.{name}".lstrip(".")
        text = ast.get_docstring(node) or ""
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and public
        explained = text + (above if name == "__init__" else "")  # a class may explain them
        missing = tuple(_undocumented(node, explained)) if function else ()
        above = text
        if text or missing:
            yield Docstring(path, getattr(node, "lineno", 1), outer, text, missing, function)
        public = public and not function  # functions inside a function are private
    for child in ast.iter_child_nodes(node):
        yield from _below(child, path, outer, public, above)


def _undocumented(node: ast.FunctionDef | ast.AsyncFunctionDef, text: str) -> Iterator[str]:
    names = [
        argument.arg
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        if argument.arg not in {"self", "cls"} and not argument.arg.startswith("_")
    ]
    inherited = any("override" in ast.unparse(decorator) for decorator in node.decorator_list)
    for name in names:
        if not inherited and not re.search(rf"^\s+(\w+, )*{name}(, \w+)*: |``{name}``", text, re.M):
            yield name


def _counts(found: list[Docstring]) -> None:
    names = [*HABITS, FIRST_LINE]
    rows: dict[str, Counter[str]] = {}
    for docstring in found:
        package = "/".join(docstring.path.split("/")[:2])
        row = rows.setdefault(package, Counter())
        row.update(docstring.habits())
        row["functions"] += docstring.public
        row["undocumented"] += bool(docstring.missing)
    columns = [*names, "functions", "undocumented"]
    print(f"{'':28}" + "".join(f"{name:>13}" for name in columns))
    for package, row in rows.items():
        print(f"{package:28}" + "".join(f"{row[name]:13}" for name in columns))
    total = sum(rows.values(), Counter())
    print(f"{'all':28}" + "".join(f"{total[name]:13}" for name in columns))


def main() -> None:
    """Print counts, places or a sample, as the options ask."""
    parser = argparse.ArgumentParser(prog="python -m tests.prose", description=__doc__)
    parser.add_argument("--list", metavar="HABIT", choices=[*HABITS, FIRST_LINE])
    parser.add_argument("--arguments", action="store_true")
    parser.add_argument("--draw", type=int, metavar="N", default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("under", nargs="?", default="", help="a folder or file")
    asked = parser.parse_args()
    found = [docstring for docstring in docstrings() if docstring.path.startswith(asked.under)]
    if asked.list:
        for docstring in found:
            if asked.list in docstring.habits():
                print(f"{docstring.path}:{docstring.line} {docstring.name}\n    {docstring.text}")
    elif asked.arguments:
        for docstring in found:
            if docstring.missing:
                missing = ", ".join(docstring.missing)
                print(f"{docstring.path}:{docstring.line} {docstring.name}: {missing}")
    elif asked.draw:
        functions = [docstring for docstring in found if docstring.public]
        for docstring in random.Random(asked.seed).sample(functions, asked.draw):
            print(f"{docstring.path}:{docstring.line} {docstring.name}", end="")
            print(
                f"  (not documented: {', '.join(docstring.missing)})" if docstring.missing else ""
            )
            print("    " + docstring.text.replace("\n", "\n    ") + "\n")
    else:
        _counts(found)


if __name__ == "__main__":
    main()
