"""Configuration as code: documents, their plan against what is there, and importing what others wrote."""
