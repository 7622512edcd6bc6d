"""How fast a model is here, alone and beside other tools."""
