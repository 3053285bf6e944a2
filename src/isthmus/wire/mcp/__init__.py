"""MCP in both eras: `legacy` (2024-11-05 to 2025-11-25), `modern` (2026-07-28), and what they share."""
