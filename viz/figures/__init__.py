"""Everything drawn with Plotly."""
