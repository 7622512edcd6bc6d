"""The command line. How a command is written:

1. A frozen dataclass in `bench.cli.options`, one module for each group of commands, is what can be
   typed: positionals, then ``_: KW_ONLY``, then options, then groups of options. Nothing inherits:
   a group is a field (``folder_options: FolderOptions = FolderOptions()``) whose fields are
   options of the command.
2. Groups that several commands have are in `bench.cli.options.shared`. Each is decorated with
   ``@group(title, sort_key)``. A settings record of the domain, a frozen dataclass, is a group as
   it is: ``terms: Annotated[GateSettings, group("Decision rule", 10)] = GateSettings()``. It checks
   its values in ``__post_init__`` and raises `BenchError`; its ``Attributes:`` are the help.
3. ``only: ClassVar[Only] = {"group": {"what": "models"}}`` refuses an option where another
   one makes it meaningless: a value or a tuple of them, True for "given", False for "not given".
4. The docstring is the help, ``Attributes:`` that of the options; below ``Examples:`` stand
   commands. A place that is written has the
   type `OutFolder`, `OutFile` or `OutPlace`, and is tried before any work.
5. A line in ``COMMANDS`` of `bench.cli.main`, and a function in ``bench/cli/commands``,
   which takes the record and returns an `ExitCode`. Modules of options
   import no heavy library: ``--help`` reads them all.
"""
