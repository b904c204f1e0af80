// Uses the gateway by a TypeScript client: node legs.mjs CLIENT_MODULE TRANSPORT_MODULE URL SECRET
const [clientModule, transportModule, url, secret] = process.argv.slice(2);
const { Client } = await import(clientModule);
const { StreamableHTTPClientTransport } = await import(transportModule);

const transport = new StreamableHTTPClientTransport(new URL(url), {
  requestInit: { headers: { authorization: `Bearer ${secret}` } },
});
const client = new Client({ name: "legs", version: "1" }, process.env.MODE ? { versionNegotiation: { mode: process.env.MODE } } : {});
await client.connect(transport);
const { tools } = await client.listTools();
const called = await client.callTool({ name: "files-read", arguments: { nonce: process.env.NONCE } });
const failed = await client.callTool({ name: "files-write", arguments: { fail: true } });
let code = null;
try {
  await client.callTool({ name: "files-delete", arguments: {} });
} catch (error) {
  code = error.code;
}
const stopping = new AbortController();
const held = client.callTool({ name: "files-read", arguments: { nonce: `${process.env.NONCE} held`, hold: true } }, undefined, { signal: stopping.signal }).catch(() => "stopped");
await new Promise((resolve) => setTimeout(resolve, 1500));
stopping.abort();
await held;
await new Promise((resolve) => setTimeout(resolve, 1500));
await client.close();
console.log(JSON.stringify({ tools: tools.map((tool) => tool.name), text: called.content[0].text, isError: failed.isError, code }));
