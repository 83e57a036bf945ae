"""The steps from messages to commits: a buffer, its writer, and the loop around them."""
