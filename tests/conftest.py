"""What every test has: servers of its own on loopback."""

import atexit
import functools
import gc
import inspect
import os
import shutil
import signal
import tempfile
from pathlib import Path

import httpx
from hypothesis import settings
from websockets.sync.client import connect

from tealagents.stores import encrypted

pytest_plugins = [
    "tealagents.testing.pytest_servers",
    "tealagents.testing.pytest_stores",
    "tests.forked_workers",
    "tests.schedule",
]

for name in [name for name in os.environ if name.startswith("TA_")]:
    del os.environ[name]

# Nearly all that collecting the tests makes stays: the garbage collector would go through it in vain.
gc.disable()

# Each run draws the same examples, unless it is to look for others. A busy machine is slow; what an example
# finds does not depend on how long it took.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None)
settings.load_profile(os.environ.get("EXAMPLES", "same"))

# Nor is an answer wrong after five seconds, httpx's default: one object, which all of its calls share.
_default = inspect.signature(httpx.get).parameters["timeout"].default
_default.connect = _default.read = _default.write = _default.pool = 60
# Nor is a WebSocket broken that opens, closes or is pinged slowly.
(connect.__kwdefaults__ or {}).update(open_timeout=60, close_timeout=60, ping_timeout=60)

# A short key is stretched on purpose, for a tenth of a second: each once.
encrypted._derive = functools.lru_cache(encrypted._derive)

# Tests call nothing outside this machine, and reading the system's certificates takes 15 ms a TLS context.
# Without these variables, OpenSSL and botocore each read a file of their own, botocore even without TLS.
for name in ("SSL_CERT_FILE", "AWS_CA_BUNDLE"):
    os.environ[name] = str(Path(__file__).parent / "fixtures" / "only_authority.pem")
os.environ["SSL_CERT_DIR"] = tempfile.mkdtemp(prefix="no-certificates-")
# Forked workers share the folder, so the first one to end may already have removed it.
atexit.register(shutil.rmtree, os.environ["SSL_CERT_DIR"], ignore_errors=True)

# Started in the background or by `nohup`, a process inherits that SIGINT or SIGHUP is ignored, and so would
# all that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_finish() -> None:
    """What was imported stays: the garbage collector need not go through it again with every test.

    The thresholds let it look at what is new less often, and at everything rarely.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
    gc.enable()
