"""Adapters: small sets of weights on a base model, from AdapterHub or PEFT.

Read `settings` (what a preset states), `identify` (what a folder holds, by its files alone), `hub`
and `peft` (each library: trained, written, attached), `folder` (the adapter of a base, with its
card), `compose` (several as one) and `routing` (one of several, for each query or collection).
A method that a library has, or that is added to its registry, needs no edit here.
"""
