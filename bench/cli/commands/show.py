"""``show``: what is known of a model, a collection, a suite or a result."""

from bench.cli.describe import describe
from bench.cli.fact_page import every_fact, page
from bench.cli.options.data import ShowOptions
from bench.cli.printing import columns, print_json
from bench.cli.terminal import program_name
from bench.exit_codes import ExitCode


def show(options: ShowOptions) -> int:
    """The main facts on one screen, or all facts, each with its name."""
    facts = describe(options.name)
    if options.output.json:
        print_json(facts)
    elif options.all:
        print(columns(list(every_fact(facts))))
    else:
        print(page(facts, f"{program_name()} show {options.name} --all"))
    return ExitCode.OK
