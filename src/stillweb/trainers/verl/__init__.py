"""verl: agent loop, tool and advantage estimator."""
