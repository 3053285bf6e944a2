// The official TypeScript SDK as a client, 1.x or 2.x: it reads on standard input which servers to call, and
// answers on standard output. `tests/peers/typescript.py` runs it; the steps and answers are those of the other clients.
const HEARD = {
  "notifications/tools/list_changed": "tools",
  "notifications/prompts/list_changed": "prompts",
  "notifications/resources/list_changed": "resources",
};
const MODERN = "2026-07-28";

/** What the two majors spell differently. */
async function load(major) {
  if (major === 2) {
    const [sdk, stdio] = await Promise.all([
      import("@modelcontextprotocol/client"),
      import("@modelcontextprotocol/client/stdio"),
    ]);
    return {
      ...sdk,
      ...stdio,
      answer: (client, method, how) => client.setRequestHandler(method, how),
      call: (client, params, options) => client.callTool(params, options),
    };
  }
  const from = (path) => import(`@modelcontextprotocol/sdk/${path}.js`);
  const [client, http, sse, stdio, types] = await Promise.all(
    ["client/index", "client/streamableHttp", "client/sse", "client/stdio", "types"].map(from),
  );
  const schemas = {
    "elicitation/create": types.ElicitRequestSchema,
    "sampling/createMessage": types.CreateMessageRequestSchema,
    "roots/list": types.ListRootsRequestSchema,
  };
  return {
    ...client,
    ...http,
    ...sse,
    ...stdio,
    answer: (client, method, how) => client.setRequestHandler(schemas[method], how),
    call: (client, params, options) => client.callTool(params, undefined, options),
  };
}

/** One session at one server. */
class ClientSession {
  asked = [];
  announced = [];
  #wake = () => {};

  constructor(sdk, mode) {
    this.sdk = sdk;
    const capabilities = { elicitation: {}, sampling: {}, roots: {} };
    const negotiation = mode === MODERN ? { mode: { pin: mode } } : { mode };
    this.client = new sdk.Client({ name: "typescript", version: "1" }, { capabilities, versionNegotiation: negotiation });
    this.client.fallbackNotificationHandler = async ({ method, params }) => this.#hear(HEARD[method] ?? params?.uri);
    this.#answerQuestions();
  }

  #answerQuestions() {
    const answer = (method, how) =>
      this.sdk.answer(this.client, method, async ({ params }) => {
        this.asked.push(method);
        return how(params);
      });
    answer("elicitation/create", (params) => ({ action: "accept", content: filled(params.requestedSchema) }));
    answer("sampling/createMessage", () => ({
      role: "assistant",
      model: "none",
      content: { type: "text", text: "a greeting" },
    }));
    answer("roots/list", () => ({ roots: [{ uri: "file:///work", name: "work" }] }));
  }

  #hear(word) {
    this.announced.push(word);
    this.#wake();
  }

  async run({ url, sse, command, steps }) {
    const transport = command
      ? new this.sdk.StdioClientTransport({ command: command[0], args: command.slice(1), env: process.env })
      : new (sse ? this.sdk.SSEClientTransport : this.sdk.StreamableHTTPClientTransport)(new URL(url));
    await this.client.connect(transport);
    this.version = this.client.getNegotiatedProtocolVersion?.() ?? transport.protocolVersion;
    const answers = {};
    for (const [name, step] of Object.entries(steps)) answers[name] = await this.#try(step);
    await this.client.close();
    return answers;
  }

  async #try(step) {
    try {
      return { ok: true, ...(await this[step.do](step)) };
    } catch (error) {
      return { ok: false, error: { code: error.code, message: error.message, data: error.data } };
    }
  }

  hello = () => ({ hello: { protocolVersion: this.version, capabilities: this.client.getServerCapabilities() } });
  list = () => this.client.listTools();
  resources = () => this.client.listResources();
  templates = () => this.client.listResourceTemplates();
  prompts = () => this.client.listPrompts();
  announcements = () => ({ announcements: this.announced });
  read = async ({ uri }) => ({ result: await this.client.readResource({ uri }) });
  prompt = async (step) => ({
    result: await this.client.getPrompt({ name: step.name, arguments: step.arguments }),
  });

  async complete({ ref, argument, known }) {
    const context = known && { arguments: known };
    return { result: await this.client.complete({ ref, argument, context }) };
  }

  async call(step) {
    const [progress, before] = [[], this.asked.length];
    const report = (seen) => progress.push([seen.progress, seen.total, seen.message]);
    const result = await this.#call(step, step.progress ? { onprogress: report } : {});
    return { result, progress, asked: this.asked.slice(before) };
  }

  #call({ tool, arguments: given, meta }, options) {
    return this.sdk.call(this.client, { name: tool, arguments: given, ...(meta && { _meta: meta }) }, options);
  }

  /** Call, and take it back at the first sign that the server is at work. */
  async cancel(step) {
    const taken = new AbortController();
    const answer = this.#call(step, { signal: taken.signal, onprogress: () => taken.abort("enough") });
    return { answer: await answer.then((result) => ({ result }), () => ({})) };
  }

  async listen({ uri }) {
    if (this.version !== MODERN) {
      if (uri) await this.client.subscribeResource({ uri });
      return {};
    }
    const lists = { toolsListChanged: true, promptsListChanged: true, resourcesListChanged: true };
    const listening = await this.client.listen({ ...lists, ...(uri && { resourceSubscriptions: [uri] }) });
    return { honored: listening.honoredFilter };
  }

  /** Wait for an announcement after which the thing is listed: an earlier one may be about something else. */
  async changed({ what = "tools", within, lists }) {
    const list = { tools: this.list, prompts: this.prompts, resources: this.resources }[what];
    for (let past = 0; ; ) {
      past = await this.#until(what, past, within);
      const listing = await list();
      if (listing[what].some((item) => (what === "resources" ? item.uri : item.name) === lists)) return listing;
    }
  }

  async updated({ uri, within }) {
    await this.#until(uri, 0, within);
    return {};
  }

  async #until(word, past, within) {
    const count = () => this.announced.filter((one) => one === word).length;
    const late = AbortSignal.timeout(within * 1000);
    while (count() <= past) {
      await new Promise((resolve, reject) => {
        this.#wake = resolve;
        late.onabort = () => reject(new Error(`nothing of ${word} within ${within} seconds`));
      });
    }
    return count();
  }
}

/** What an obliging person enters. */
function filled({ properties }) {
  const entered = ([name, { default: proposed, type }]) => [name, proposed ?? (type === "boolean" ? true : "Ada")];
  return Object.fromEntries(Object.entries(properties).map(entered));
}

const chunks = [];
for await (const chunk of process.stdin) chunks.push(chunk);
const { major, mode, sessions } = JSON.parse(Buffer.concat(chunks).toString());
const sdk = await load(major);
const answers = await Promise.all(sessions.map((session) => new ClientSession(sdk, mode).run(session)));
process.stdout.write(JSON.stringify(answers), () => process.exit(0));
