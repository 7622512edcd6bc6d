"""Encoders: texts to vectors, by every back end."""
