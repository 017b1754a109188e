"""What the local executor is made of: the work of a plan, and what is shown of it."""
