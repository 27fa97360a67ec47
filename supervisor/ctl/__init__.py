"""supervisorctl: speaks the control API and knows nothing else of the daemon."""
