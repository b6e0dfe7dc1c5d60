"""The Plotly figures."""
