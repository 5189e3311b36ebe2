"""The last filter before a line is written: values that look like secrets or inline media are masked.

Events do not carry such values in the first place; this catches what a library or an exception message brings along.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict

MASK = "[redacted]"
# Each begins where a word does, or behind an escape that ends in a letter or digit, as in a repr or a URL.
_SECRETS = re.compile(
    r"""(?ix)
    (?: \b | (?<= \\[abfnrtv]) | (?<= \\x[0-9a-f]{2}) | (?<= \\u[0-9a-f]{4}) | (?<= %[0-9a-f]{2}) )
    (?: bearer (?: \s | \\[nrt] | %20 | \+ )+ [^\s"',;]+
      | (?:sk|hf) [-_] [a-z0-9_-]{6,}
      | data: (?: [\w.+-]{1,99} / [\w.+-]{1,99} )? (?: ; [^,\s"']{0,99} )? , [^\s"']*
    )
    """
)


def redact(text: str) -> str:
    """`text` with everything secret-looking masked."""
    return _SECRETS.sub(MASK, text)


class RateLimitedByKey:
    """Lets one event per key through every `every_s` seconds and counts the rest. Bounded in memory; not thread-safe."""

    def __init__(self, every_s: float = 10.0, most_keys: int = 1024) -> None:
        self._every_s = every_s
        self._most_keys = most_keys
        self._seen: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def admit(self, key: str, now_s: float | None = None) -> int | None:
        """How many events this one stands for (itself and those held back since the last), or `None` to hold it back."""
        now_s = time.monotonic() if now_s is None else now_s
        last = self._seen.pop(key, None)
        if last is not None and now_s - last[0] < self._every_s:
            self._seen[key] = (last[0], last[1] + 1)
            return None
        self._seen[key] = (now_s, 0)
        while len(self._seen) > self._most_keys:
            self._seen.popitem(last=False)
        return 1 + (last[1] if last is not None else 0)
