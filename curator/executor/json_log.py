"""Lines of a log as JSON, one object each, for collectors of logs."""

import json
import logging
from datetime import UTC, datetime


class JsonFormatter(logging.Formatter):
    """Formats records of the standard library's log; an attribute `stage` is a field."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns a record as one line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "level": record.levelname, "logger": record.name}
        line["message"] = record.getMessage()
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line | {k: v for k, v in vars(record).items() if k == "stage" and v})
