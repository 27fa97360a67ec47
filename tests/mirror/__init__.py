"""Object stores for tests: emulators as child processes, and a proxy in front of them that fails when told to."""
