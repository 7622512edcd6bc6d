"""Speed of a model on this machine, alone and beside other tools."""
