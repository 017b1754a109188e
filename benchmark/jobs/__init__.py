"""From a suite to work that is done: the plan of what is missing, the executors that do it, and the states of runs."""
