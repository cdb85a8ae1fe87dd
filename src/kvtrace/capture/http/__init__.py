"""HTTP receivers: ASGI applications that put the bodies of requests into the queue."""
