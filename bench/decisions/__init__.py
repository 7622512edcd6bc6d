"""From scores to a decision: paired statistics, comparisons, the release gate."""
