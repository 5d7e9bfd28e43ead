"""What onejob tells about itself."""
