"""ReMe's HTTP protocol, first generation: request and reply bodies and dump files, a client, and a service."""
