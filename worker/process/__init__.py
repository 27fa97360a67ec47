"""This process as one attempt of a job: the control pipe, signals, the standby's wait, and the processes beside it."""
