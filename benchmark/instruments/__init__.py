"""What looks at methods and models from outside: speed, conformance, the models of a run, commands on checkpoints."""
