"""The edge: request and response types, SSE framing and the error catalogue. No I/O, no engine."""
