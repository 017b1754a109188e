"""What is to run and what has run: plans, states, this machine and Slurm."""
