"""Built-in annotators: values that are derived from written clips and captions."""
