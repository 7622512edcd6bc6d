"""The command line as types: one frozen record for each group of options, and one for each command.

The text below a field is its help. Nothing here imports a heavy library: ``--help`` reads these.
"""
