"""Instruments that look at methods and models from outside: speed, conformance, checkpoints."""
