"""A private nginx, with the sample of `docs/operations.md` as its configuration."""

import grp
import os
import re
import shutil
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

from tealagents.testing.servers import Server, ServerMissing
from tealagents.testing.signing_in import self_signed

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
#: what surrounds the sample on a machine where nginx is installed
_AROUND = """
daemon off;
user root {group};
pid nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    {sample}
}}
"""


def sample() -> str:
    """The sample as it stands on the page."""
    (found,) = re.findall(r"^```nginx\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return str(found)


class NginxServer(Server):
    """nginx before processes on these ports. Only ports and the certificate differ from the sample.

    `routing` is put before the sample's servers.
    """

    name = "nginx"
    end_signal = signal.SIGTERM  # its workers would outlive a SIGKILL

    def __init__(self, *ports: int, routing: str = "") -> None:
        super().__init__()
        self._ports = ports
        self._routing = routing

    @property
    def url(self) -> str:
        return f"https://{self.host}:{self.port}"

    def prepare(self) -> None:
        self_signed(self.directory / "server.pem")

    def command(self) -> Sequence[str]:
        places = (os.environ["PATH"], "/usr/sbin", "/usr/local/sbin")  # not on the PATH of every user
        program = shutil.which("nginx", path=os.pathsep.join(places))
        if program is None:
            raise ServerMissing("nginx: `apt install nginx`, `brew install nginx`")
        self._configure()
        folder = f"{self.directory}/"
        return [program, "-p", folder, "-c", f"{folder}nginx.conf", "-e", "stderr"]

    def answers(self) -> bool:
        with socket.create_connection((self.host, self.port)):
            return True

    def _configure(self) -> None:
        pem = self.directory / "server.pem"
        text = sample()
        listening = (
            f"listen {self.host}:{self.port} ssl http2; ssl_certificate {pem}; ssl_certificate_key {pem};"
        )
        opening = "upstream tealagents {"
        changes = {"listen 443 ssl http2;": listening, opening: opening + self._routing}
        for number, port in enumerate(self._ports):
            changes[f"server 127.0.0.1:{8000 + number} "] = f"server 127.0.0.1:{port} "
        for printed, here in changes.items():
            assert text.count(printed) == 1, printed
            text = text.replace(printed, here)
        around = _AROUND.format(group=grp.getgrgid(0).gr_name, sample=text)
        (self.directory / "nginx.conf").write_text(around)
