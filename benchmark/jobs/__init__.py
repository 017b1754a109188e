"""From a suite to work that is done: the plan, the executors that do it, and the states of runs."""
