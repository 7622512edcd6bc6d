"""Requests for tests that call a command in their own process."""

from typing import Any

from bench.cli.main import parse_command


def typed(*words: object) -> tuple[Any, Any]:
    """The request and the output options of a command line, as the command gets them."""
    parsed = parse_command([str(word) for word in words])
    return parsed.request, parsed.output


def options(command: str, *positional: object, **named: Any) -> tuple[Any, Any]:
    """The request and the output options of a command.

    Args:
        named: options by name: True for a flag, several values as a list, None or False for
            nothing.
    """
    words: list[object] = [command, *positional]
    for name, value in named.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif isinstance(value, list | tuple) and value and isinstance(value[0], list | tuple):
            words += [word for values in value for word in (option, *values)]
        elif isinstance(value, list | tuple):
            words += [option, *value] if value else []
        elif value is not None and value is not False:
            words += [option, value]
    return typed(*words)
