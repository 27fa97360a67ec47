"""One attempt of a program: started, promoted from a standby, or adopted; its process and pipes."""
