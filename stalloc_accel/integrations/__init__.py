"""The doors: how settings reach us from an unmodified script, and how the hosts' steps reach the session."""
