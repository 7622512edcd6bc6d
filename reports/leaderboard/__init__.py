"""A leaderboard as Markdown, CSV, LaTeX, and as a folder of pages."""
