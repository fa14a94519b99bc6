"""Hardware: profiles, calibration, speed of light, targets and measuring. Knows nothing of ``envs``."""
