"""The size of the program by package, and of its command line: ``python -m tests.code_size``.

A code line is a line that is neither blank nor a comment nor part of a docstring. A module is a
file of Python; TOML, templates and documentation do not count.
"""

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.cli.main import count_arguments

ROOT = Path(__file__).parents[1]
PRODUCT = ("foundation", "datasets_cfg", "retrievers", "bench", "reports")
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@dataclass(frozen=True)
class Size:
    """Code lines and modules of a folder, and of the packages directly below it by name."""

    lines: int
    modules: int
    packages: dict[str, "Size"]


def code_lines(source: str) -> int:
    """Count the lines of code of one module."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {
        line
        for token in tokens
        if token.type not in LAYOUT
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(lines - set(_docstring_lines(ast.parse(source))))


def _docstring_lines(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if ast.get_docstring(node, clean=False) is not None and first is not None:
                yield from range(first.lineno, (first.end_lineno or first.lineno) + 1)


def size(folder: Path) -> Size:
    """Measure a folder with everything below it."""
    lines: Counter[str] = Counter()
    modules: Counter[str] = Counter()
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).parts
        package = parts[0] if len(parts) > 1 else ""
        lines[package] += code_lines(path.read_text(encoding="utf-8"))
        modules[package] += 1
    packages = {name: size(folder / name) for name in sorted(lines) if name}
    return Size(lines.total(), modules.total(), packages)


def product_size() -> Size:
    """Measure the packages that users install."""
    packages = {name: size(ROOT / name) for name in PRODUCT}
    return Size(
        sum(package.lines for package in packages.values()),
        sum(package.modules for package in packages.values()),
        packages,
    )


def main() -> None:
    """Print the sizes of the product, two levels deep, and of the tests."""
    product = product_size()
    for name, package in product.packages.items():
        for inner, part in package.packages.items():
            print(f"  {name + '/' + inner:28}{part.lines:8,}{part.modules:6}")
        print(f"{name:30}{package.lines:8,}{package.modules:6}")
    tests = size(ROOT / "tests")
    print(f"{'tests':30}{tests.lines:8,}{tests.modules:6}")
    print(f"{'product':30}{product.lines:8,}{product.modules:6}   code lines, modules")
    arguments = count_arguments()
    print(f"{'commands, options of all':30}{len(arguments):8,}{sum(arguments.values()):6}")


if __name__ == "__main__":
    main()
