"""The release gate: may this checkpoint ship?"""
