"""What the site shows that nobody writes by hand: made from parsers, models and packages while it is built."""
