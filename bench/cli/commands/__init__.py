"""The commands that do work: one file each, named after the command."""
