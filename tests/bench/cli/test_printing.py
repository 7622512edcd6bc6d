"""What several commands print."""

from bench.cli.printing import columns


def test_rows_of_text_stand_in_columns_as_they_are():
    table = columns([("a", "1e3"), ("long/name", "x | y"), ("b", "")])
    assert table.splitlines() == ["a          1e3", "long/name  x | y", "b"]
