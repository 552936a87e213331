"""Settings of the rules, which `curator/measures/rule_config.py` defines for all that judge."""

from curator.measures.rule_config import FilterConfig as FilterConfig
