"""Names and texts that a page must show as text, and no file or program may take at their word."""

HOSTILE = (
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "'\"><svg onload=alert(1)>",
    "../../etc/passwd", "..%2f..%2fetc%2fpasswd", "javascript:alert(1)", "{{7*7}}", "${7*7}",
    "</script><script>", "<!--", "]]>", "\u202egpj.exe", "\u2066a\u2069", "\x00nul", "\x1b[31mred",
    "a\nb", "a\rb", "name\u2028line", "\ufeffbom", "'; DROP TABLE clips; --", "%00", "%0d%0aX: y",
    "con", "~root", "$(reboot)", "`reboot`", "| cat", "a" * 5000, "\N{PILE OF POO}", "\ud800",
)  # fmt: skip
