"""What tests build on: small networks, texts, suites, a Slurm cluster on this machine."""
