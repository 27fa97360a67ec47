"""HTTP/1.1 over unix sockets and TCP: connections and their limits, requests, responses and routes, access."""
