"""Generated parts of the site, made from parsers, models and packages while it is built."""
