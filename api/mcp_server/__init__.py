"""The inbound MCP endpoint: tools of the gateway for any MCP client, over the same rounds as execute."""
