"""What the daemons of a gang say to each other over the network, and who is let in. Imports protocol only."""
