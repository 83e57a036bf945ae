"""Jobs by spark-submit: the apps, the code that they share, and the call that each operation's arguments become (`operations`)."""
