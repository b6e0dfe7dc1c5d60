"""Tools that measure the page: first paint, overhead, memory, what-if latency."""
