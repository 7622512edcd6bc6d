"""Fine-tuning an encoder on judged queries."""
