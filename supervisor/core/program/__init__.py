"""What is known of one program, what happens to it, and what is to be done? Imports `failures` and `notices`."""
