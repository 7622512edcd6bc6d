"""Commands: each function takes a request and options of the output, and prints a record."""
