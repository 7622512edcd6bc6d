"""Records as pictures, SVG and PNG, in colours that colour-blind people tell apart.

matplotlib is the extra ``plots``: imported when something is drawn.
"""
