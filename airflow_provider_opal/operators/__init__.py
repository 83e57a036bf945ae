"""Tasks on tables. Each submits one packaged Spark app; `spark` is what they share: token, submit, result."""
