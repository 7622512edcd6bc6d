"""Leaderboards: stored results of several models in one table.

`rows` sorts results into columns (a collection under one protocol) and rows (a model under one
recipe), and resamples the queries of each column once for all rows. `leaderboard` makes a
`leaderboard_record.Leaderboard` of this and of published tables. The tables and the page in
`reports` are made from that record alone.
"""
