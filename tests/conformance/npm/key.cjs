'use strict';
// The suite has no option for a key, and the hub under test wants one: Node tells of every request before it leaves,
// and the header is added there. `--require` loads this file before the suite.
const { subscribe } = require('node:diagnostics_channel');

const origin = new URL(process.env.CONFORMANCE_ORIGIN);
const bearer = `Bearer ${process.env.CONFORMANCE_KEY}`;

subscribe('undici:request:create', ({ request }) => {
  if (String(request.origin) === origin.origin) request.addHeader('authorization', bearer);
});

subscribe('http.client.request.created', ({ request }) => {
  if (request.host === origin.hostname) request.setHeader('authorization', bearer);
});
