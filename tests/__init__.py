"""Tests of the rooms, each in the folder of its room."""
