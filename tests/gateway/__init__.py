"""The filters, names and guarantees of the gateway, judged from outside."""
