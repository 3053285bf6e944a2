"""The hub itself: how a call finds its server, is bounded, and ends. It knows no protocol's shapes."""
