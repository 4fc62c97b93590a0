"""The engine behind a Unix-domain socket: protocol, connections, process."""
