"""The demo of streams: a Kafka of its own, a flow of orders, and a table that shows them."""
