"""Downstream tasks, models that are fine-tuned or probed on them, and scores."""
