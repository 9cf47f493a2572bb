"""What PerMA is compared with: other federated learners, and what needs no federation or no learning."""
