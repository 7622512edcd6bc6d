"""The program stays as small as CONTRIBUTING.md says.

A feature that needs more raises a limit here in the same change, and says what it buys.
"""

import pytest

from bench.cli.main import count_arguments
from tests.code_size import code_lines, product_size, size

# explain has 1,600 of them, served models 400, training files 500, experiments' plans, commands,
# rates and anchors 600
MOST_LINES = 27_500
MOST_MODULES = 215
MOST_COMMANDS = 21
MOST_OPTION_SLOTS = 280


def test_the_product_is_within_its_limits():
    product = product_size()
    assert product.lines <= MOST_LINES
    assert product.modules <= MOST_MODULES


def test_the_command_line_is_within_its_limits():
    arguments = count_arguments()
    assert len(arguments) <= MOST_COMMANDS
    assert sum(arguments.values()) <= MOST_OPTION_SLOTS


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("", 0),
        ('"""Module."""\n', 0),
        ("x = 1  # comment\n\n# comment\n", 1),
        ('def f():\n    """One.\n\n    Two.\n    """\n    return 1\n', 2),
        ('x = """\n\ntext\n"""\n', 4),
        ('class A:\n    x: int = 1\n    """Documentation of a field."""\n', 3),
        ("f(\n    1,\n)\n", 3),
    ],
)
def test_a_code_line_is_neither_blank_nor_comment_nor_docstring(source, lines):
    assert code_lines(source) == lines


def test_a_folder_is_measured_with_all_below_it(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "top.py").write_text("x = 1\n")
    (tmp_path / "a" / "one.py").write_text("x = 1\ny = 2\n")
    (tmp_path / "a" / "b" / "two.py").write_text("x = 1\n")
    (tmp_path / "a" / "b" / "data.toml").write_text("x = 1\n")
    whole = size(tmp_path)
    assert (whole.lines, whole.modules) == (4, 3)
    assert (whole.packages["a"].lines, whole.packages["a"].modules) == (3, 2)
