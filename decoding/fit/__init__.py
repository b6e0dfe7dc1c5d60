"""Training, calibration and tuning of the learned policies."""
