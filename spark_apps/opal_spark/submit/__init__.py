"""Jobs by spark-submit: the apps, what they share, and how a job's arguments become a call."""
