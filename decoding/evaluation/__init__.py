"""Rules and drafts over a prompt suite: the papers' tables, and which draft and SL suit this machine."""
