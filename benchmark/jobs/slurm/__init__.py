"""What the Slurm executor is made of: its commands, its job files, and a job from the inside."""
