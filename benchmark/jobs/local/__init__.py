"""What the local executor is made of: slots of this machine, and runs in turns or side by side."""
