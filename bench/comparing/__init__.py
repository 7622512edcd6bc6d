"""Models beside each other: paired statistics, means of suites, transfer."""
