"""The Python API, which `bench` names: `evaluation` makes and reads results, `decisions` compares
them, checks a candidate, and ranks models.
"""
