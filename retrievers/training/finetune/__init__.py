"""Fine-tuning an encoder on judged queries: `finetune` trains each `Round`."""
