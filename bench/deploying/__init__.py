"""The cheapest setting of a model's vectors that is proved not to be worse by more than a margin.

Read `settings` (the grid, its costs, and which settings are tested), then `deployment` (the
records), then `deploy`, the use case.
"""
