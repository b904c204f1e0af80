"""The product as processes: its command, `up`, `serve` and the demo."""
