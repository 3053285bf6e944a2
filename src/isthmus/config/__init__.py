"""Files and environment into the settings that each room owns; `load.load` is the way in."""
