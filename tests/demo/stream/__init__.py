"""The demo of streams: a Kafka of its own, orders that happen, and a table that shows them."""
