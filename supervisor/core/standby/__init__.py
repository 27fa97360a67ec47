"""When does a job have a standby, which becomes its next attempt? Imports `program`; decides nothing about the job."""
