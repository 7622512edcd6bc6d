"""The command line: ``python -m bench``.

`command_table` declares the commands: their requests (`bench.requests`), how each field is typed,
and the options that only the terminal has. `parsing` reads words, `main` turns a command line into a
request, and the functions in `commands` call the use case and print its record. `terminal` guards
the streams and turns errors into messages and exit codes.
"""
