"""Other tools, each run in a process of its own by ``speed``: never imported by the rest."""
