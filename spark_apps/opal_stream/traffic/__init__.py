"""What streams bring, by hour of the week: kept beside the log, derived, and never needed to read or write a table."""
