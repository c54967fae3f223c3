"""What a person reads: verdicts, figures and the page about a history."""
