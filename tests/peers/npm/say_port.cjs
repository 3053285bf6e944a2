// Loaded before a server that was written to listen on a port it is told: it listens on a free one of loopback instead,
// and says which on standard output, as the other peers do (`PORT n`). What the server itself prints there is dropped.
"use strict";
const net = require("node:net");

const listen = net.Server.prototype.listen;
console.log = () => {};
globalThis.crypto ??= require("node:crypto").webcrypto; // the SDK's HTTP transport takes it for granted; Node 18 hides it
net.Server.prototype.listen = function (_port, ...rest) {
  this.once("listening", () => process.stdout.write(`PORT ${this.address().port}\n`));
  return listen.call(this, 0, "127.0.0.1", ...rest.filter((one) => typeof one === "function"));
};
