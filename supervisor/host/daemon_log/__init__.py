"""Where does the daemon's own log go, and in which format?"""
