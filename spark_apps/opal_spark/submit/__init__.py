"""Jobs by spark-submit: the app, its main function (`runner`), and the steps of a job (`jobs`)."""
