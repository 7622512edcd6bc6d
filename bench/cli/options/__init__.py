"""The command line as types: one frozen record for each group of options, and one for each command.

``Attributes:`` are the help of the options. Nothing here imports a heavy library: ``--help`` reads these.
"""
