"""HTTP/1.1 over unix sockets and TCP: connections, limits, access."""
