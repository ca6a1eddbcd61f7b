// Node's own fetch through a proxy, by a CONNECT of our own: node fetch.mjs PROXY METHOD:URL...
// The dispatcher is of the undici that Node brings with it, so that no package is needed.
import { createHash } from "node:crypto";
import http from "node:http";
import tls from "node:tls";

const [proxy, ...targets] = process.argv.slice(2);
const { hostname, port } = new URL(proxy);
await fetch("data:,"); // from now on there is a dispatcher
const Agent = globalThis[Symbol.for("undici.globalDispatcher.1")].constructor;

const connect = ({ hostname: host, port: to, protocol, servername }, done) => {
  const path = `${host}:${to || (protocol === "https:" ? 443 : 80)}`;
  const tunnel = http.request({ hostname, port, method: "CONNECT", path, agent: false });
  tunnel.on("error", done);
  tunnel.on("connect", (answer, socket) => {
    if (answer.statusCode !== 200) return done(new Error(`CONNECT: ${answer.statusCode}`));
    if (protocol !== "https:") return done(null, socket);
    const secure = tls.connect({ socket, servername: servername || host }, () => done(null, secure));
    secure.on("error", done);
  });
  tunnel.end();
};

const dispatcher = new Agent({ connect });
for (const each of targets) {
  const [, method, url] = each.match(/^([A-Z]+):(.*)$/);
  const body = method === "POST" ? "a=1&b=2" : undefined;
  const answer = await fetch(url, { dispatcher, method, body });
  const content = Buffer.from(await answer.arrayBuffer());
  console.log(answer.status, createHash("sha256").update(content).digest("hex"));
}
process.exit(0);
