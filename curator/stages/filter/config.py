"""Settings of the rules, which `curator/measures/rule_config.py` defines for all that filter."""

from curator.measures.rule_config import FilterConfig as FilterConfig
