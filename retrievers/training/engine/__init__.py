"""Parts that all trainings share: trainer, output folder, loss curve, checkpoints."""
