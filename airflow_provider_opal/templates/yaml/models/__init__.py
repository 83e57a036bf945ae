"""What a YAML file may say: the models of a version, single values, rules between them, and the words for each mistake."""
