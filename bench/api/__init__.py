"""The public Python API, as `bench` offers it: every function has typed arguments and a page."""
