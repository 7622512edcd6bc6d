"""The decision of a check: as a sentence, as Markdown for pull requests, as JUnit XML."""
