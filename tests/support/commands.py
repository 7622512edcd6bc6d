"""Records of options for tests that call a command in their own process."""

from typing import Any

from bench.cli.main import build_app


def typed(*words: object) -> Any:
    """The record of options of a command line, as the command gets it."""
    _, bound, _ = build_app().parse_args(
        [str(word) for word in words], exit_on_error=False, print_error=False
    )
    (options,) = bound.arguments.values() or (None,)
    return options


def options(command: str, *positional: object, **named: Any) -> Any:
    """The record of options of a command.

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
