"""Run episodes on a hostile page in a network namespace where every address answers; print what left.

The test starts this program where all addresses are local to the loopback interface (AnyIP): a packet to any
host arrives at a socket here, and passes the packet socket that counts it. It prints JSON: the foreign
destinations while the episodes ran, and those of one packet that is sent on purpose afterwards.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import socket
import sys
from pathlib import Path

from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.collections.manifest import Manifest
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.env.env import Env
from stillweb.model import Exchange, Request, Response
from stillweb.replay.server.server import ReplayOptions, serve

ORIGIN = "https://shop.test"
HOSTS = ("93.184.216.34", "10.1.2.3", "169.254.169.254", "elsewhere.test", "[2001:db8::1]")
PAGE = """<!doctype html><title>Escape</title><h1>Escape</h1>
<a href="http://93.184.216.34/next">Next</a>
<form action="http://10.1.2.3/post" method="post"><button>Send</button></form>
%s
<script>
const hosts = %s;
for (const host of hosts) {
  fetch(`http://${host}/f`).catch(() => 0);
  fetch(`https://${host}/f`, {mode: "no-cors"}).catch(() => 0);
  navigator.sendBeacon(`http://${host}/b`, "x");
  try { new WebSocket(`ws://${host}/w`); new EventSource(`http://${host}/e`); } catch (error) {}
  new Image().src = `http://${host}:8081/i.png`;
}
try {
  const turn = {urls: "turn:10.1.2.3:3478?transport=tcp", username: "u", credential: "c"};
  const peer = new RTCPeerConnection({iceServers: [{urls: "stun:93.184.216.34:3478"}, turn]});
  peer.createDataChannel("x");
  peer.createOffer().then(offer => peer.setLocalDescription(offer));
} catch (error) {}
try { new WebTransport("https://93.184.216.34:4433/"); } catch (error) {}
</script>"""
HINTS = "".join(
    f'<link rel="dns-prefetch" href="//{host}"><link rel="preconnect" href="https://{host}">'
    f'<link rel="prefetch" href="http://{host}/p"><link rel="prerender" href="http://{host}/q">'
    f'<iframe src="http://{host}/"></iframe><object data="http://{host}/o"></object>'
    for host in HOSTS
)


class Sniffer:
    """All packets of the loopback interface."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # ETH_P_ALL
        self._socket.bind(("lo", 0))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        self._socket.setblocking(False)

    def foreign(self) -> list[str]:
        """Return the destinations beyond loopback since the last call."""
        found = set()
        while True:
            try:
                packet = self._socket.recv(128)
            except BlockingIOError:
                return sorted(found)
            kind = int.from_bytes(packet[12:14], "big")
            raw = packet[30:34] if kind == 0x0800 else packet[38:54] if kind == 0x86DD else b""
            if raw and not ipaddress.ip_address(raw).is_loopback:
                found.add(str(ipaddress.ip_address(raw)))


def collection(root: Path) -> Collection:
    made = Collection.create(root, "shop")
    body = (PAGE % (HINTS, json.dumps(HOSTS))).encode()
    with CollectionWriter(made) as writer:
        response = Response(
            200, "OK", (("Content-Type", "text/html"), ("Content-Length", str(len(body)))), body
        )
        writer.write(Exchange(Request("GET", ORIGIN + "/"), response, "20240506070809"))
    made.write_manifest(Manifest(name="shop", recorded_at="20240506070809", seed=5))
    seal(made)
    return made


async def episodes(folder: Path, levels: list[str], sniffer: Sniffer) -> dict[str, list[str]]:
    ca = CertAuthority.init(folder / "certs")
    left: dict[str, list[str]] = {}
    async with serve([collection(folder)], ca, ReplayOptions(port=0, session_ports=None)) as server:
        for level in levels:
            sniffer.foreign()
            async with Env(server.url, level=level) as env:
                observation, _ = await env.reset(url=ORIGIN + "/")
                assert observation.title == "Escape"
                for role in ("button", "link"):
                    bid = next((node.bid for node in observation.nodes if node.role == role), "")
                    observation, *_ = await env.step({"action": "click", "bid": bid})
                await env.step({"action": "goto", "url": "http://93.184.216.34/"})
            left[level] = sniffer.foreign()
    return left


def main() -> None:
    folder, levels = Path(sys.argv[1]), sys.argv[2].split(",")
    sniffer = Sniffer()
    left = asyncio.run(episodes(folder, levels, sniffer))
    sniffer.foreign()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        control.sendto(b"x", ("192.0.2.1", 9))
    sys.stdout.write(json.dumps({"left": left, "control": sniffer.foreign()}))


if __name__ == "__main__":
    main()
