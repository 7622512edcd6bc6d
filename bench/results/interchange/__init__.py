"""Results of others and results for others, in the formats that they use."""
