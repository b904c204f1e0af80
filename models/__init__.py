"""What is stored: tables, one aggregate a file, with the queries on them."""
