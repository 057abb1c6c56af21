"""The bulk path measured: lanes, hashing, sealing and storing, against plain sockets and TLS."""
