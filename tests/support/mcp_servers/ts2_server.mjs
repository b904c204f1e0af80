// A server on the TypeScript SDK 2.x: node ts2_server.mjs PORT [modern]
// Both eras on one URL (the legacy one stateless); with "modern" the legacy era is refused.
import { createServer } from 'node:http';
import { McpServer, createMcpHandler } from '@modelcontextprotocol/server';
import { toNodeHandler } from '@modelcontextprotocol/node';
import * as z from 'zod';

const [port, mode] = process.argv.slice(2);

function build() {
  const server = new McpServer({ name: 'ts2', version: '1' });
  server.registerTool('echo', { inputSchema: z.object({ text: z.string() }) }, async ({ text }) => ({
    content: [{ type: 'text', text }],
  }));
  server.registerTool('slow', { inputSchema: z.object({ seconds: z.number() }) }, async ({ seconds }, ctx) => {
    const token = ctx?.mcpReq?._meta?.progressToken;
    for (let step = 0; step < 4; step++) {
      if (token !== undefined) {
        await ctx.mcpReq.notify({ method: 'notifications/progress', params: { progressToken: token, progress: step, total: 4 } });
      }
      await new Promise((done) => setTimeout(done, (seconds * 1000) / 4));
    }
    return { content: [{ type: 'text', text: 'slept' }] };
  });
  return server;
}

const handler = createMcpHandler(build, mode === 'modern' ? { legacy: 'reject' } : {});
createServer(toNodeHandler(handler)).listen(Number(port), '127.0.0.1');
