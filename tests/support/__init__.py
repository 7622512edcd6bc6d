"""Small collections, checkpoints and servers, and slow oracles, for the tests of all packages."""
