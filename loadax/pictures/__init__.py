"""Pictures of an order: panels of numbers, and the figure that shows them."""
