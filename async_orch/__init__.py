"""Build, copy and launch accelerator steps ahead of the device, in memory that was allocated once."""
