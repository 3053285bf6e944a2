"""The composition root: nobody else joins rooms."""
