"""Language models and how they grow."""
