"""Batches of a stream, the method interface, one stage under one budget, and runs of stages."""
