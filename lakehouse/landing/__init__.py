"""What connectors bring, as it landed and as it adds up."""
