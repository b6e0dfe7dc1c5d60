"""One prompt, many lanes: order of work, cost curves, chains, explanations."""
