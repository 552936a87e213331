"""Steps of the pipeline, one file each, named by what they work on."""
