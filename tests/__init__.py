"""Tests of the packages, each in the folder of its package."""
