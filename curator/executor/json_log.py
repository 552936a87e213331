"""Formats log records as JSON Lines, for log collectors."""

import json
import logging
from datetime import UTC, datetime


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object; its attribute `stage` becomes a field."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the record as one line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "level": record.levelname, "logger": record.name}
        line["message"] = record.getMessage()
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line | {k: v for k, v in vars(record).items() if k == "stage" and v})
