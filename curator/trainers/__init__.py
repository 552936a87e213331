"""What trainers do with a clip: a YAML file per trainer, and the engine that applies its rules."""
