"""Options of every command. Imports nothing that is slow, so that ``--help`` answers at once."""
