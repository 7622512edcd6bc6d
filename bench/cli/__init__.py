"""The command line. To write a command:

1. Declare its arguments in a frozen dataclass in `bench.cli.options`: positional arguments, then
   ``_: KW_ONLY``, then options, then groups of options. Nothing inherits: a group is a field
   (``common: CommonOptions = CommonOptions()``) whose fields are options of the command.
2. Take groups that several commands share from `bench.cli.options.shared`. Each is decorated with
   ``@group(title, sort_key)``. A frozen dataclass of another package is a group, too:
   ``gate: Annotated[GateSettings, group("Decision rule", 10)] = GateSettings()``. It checks its
   values in ``__post_init__`` and raises `BenchError`.
3. Declare ``only_if: ClassVar[OptionConditions] = {"group": {"what": "models"}}`` to refuse an
   option that another one makes meaningless. The condition is a value or a tuple of values; True
   means that the other option is given, False that it is not.
4. Write the help in the docstring: the text, ``Attributes:`` for the options, ``Examples:`` for
   commands. Give outputs the type `OutFolder`, `OutFile` or `OutLocation`: they are tested before
   any work.
5. Add a line to ``COMMANDS`` of `bench.cli.main` and a function to ``bench/cli/commands`` that
   takes the record and returns an `ExitCode`. Modules of options import no heavy library, since
   ``--help`` reads them all.
"""
