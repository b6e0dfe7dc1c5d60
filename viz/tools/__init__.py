"""Measuring the page: first paint, overhead, memory."""
