"""Parts that every training shares: trainer, run folder, curve, saving."""
