"""The relay's wire: what devices are told, and several servers on one socket."""
