// Keeps `server-everything` from asking for roots by itself, 350 ms after its client has connected: the question would
// belong to whichever call runs then. Its tool `get-roots-list` asks for them.
"use strict";

const original = globalThis.setTimeout;
globalThis.setTimeout = (run, ...rest) => (String(run).includes("syncRoots") ? undefined : original(run, ...rest));
