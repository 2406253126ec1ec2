"""The manipulations by name."""

from __future__ import annotations

from collections.abc import Callable

from leakscope.servers.imprint import Imprint
from leakscope.servers.manipulation import Manipulation

MANIPULATIONS: dict[str, Callable[..., Manipulation]] = {
    "imprint": Imprint,
}
