"""What do Supervisor's event listeners get? Event types, states in Supervisor's words, pools of listeners."""
