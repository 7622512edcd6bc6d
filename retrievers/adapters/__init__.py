"""Adapters: attached to a base model, trained, composed."""
