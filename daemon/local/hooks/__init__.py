"""What trainers call: one small module for each framework, with the signature that it documents."""
