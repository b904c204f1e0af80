"""The client of OpenAI-compatible chat completion endpoints: a library, without Temporal and database."""
