"""Fine-tuning on tasks, and what it is scored on."""
