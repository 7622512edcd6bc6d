"""Functions of the commands, called with the options that were typed."""
