"""Models: texts become vectors, vectors become neighbours. Knows no collection and no score."""
